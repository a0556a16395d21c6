"""Prometheus' families, each made of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Sample = tuple[tuple[str, ...], float]
"""The labels' values, and the value."""


def gauge(name: str, text: str, samples: Sequence[Sample], labels: tuple[str, ...] = ()) -> Metric:
    """Return ``agentq_<name>``."""
    return _filled(GaugeMetricFamily(f"agentq_{name}", text, labels=labels), samples)


def counter(
    name: str, text: str, samples: Sequence[Sample], labels: tuple[str, ...] = ()
) -> Metric:
    """Return ``agentq_<name>_total``."""
    return _filled(CounterMetricFamily(f"agentq_{name}", text, labels=labels), samples)


def _filled(family: Any, samples: Sequence[Sample]) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family  # type: ignore[no-any-return]
