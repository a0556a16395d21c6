"""Running and judging an installation: up, demo, status, timelines, benchmarks."""
