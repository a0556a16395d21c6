"""The worker process: loop, tracers, lease, traffic with the cell."""
