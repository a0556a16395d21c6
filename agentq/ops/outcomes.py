"""How runs and steps ended, as `agentq metrics` tells it: from the cell's hash `counts`.

It only grows for as long as the cell is there. Runs, and what died with its process, are counted as
they end; steps by their workers, which tell it every few seconds. Celery's own pools do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric

from agentq.ops.families import Sample, counter
from agentq.runs.record import RunState
from agentq.store.counts import BUCKETS_S, Happened, bucket, by_name

_ENDS = tuple(state for state in RunState if state.ended)
_RARE = {
    Happened.RETRIED: ("steps_retried", "Attempts that raised and are tried again"),
    Happened.TIMEOUT: ("steps_timed_out", "Attempts that their step's timeout ended"),
    Happened.LOST: ("steps_lost", "Attempts that died with their process"),
}
_STEP = ("step",)
_UPPER_ENDS = (*map(str, BUCKETS_S), "+Inf")


def told(fields: Mapping[str, str], *, flows: Iterable[str]) -> Iterator[Metric]:
    """Yield the families; *flows*: those that are told too while none of their runs has ended.

    Prometheus does not see a counter grow that was not there before.
    """
    nothing: dict[str, dict[str, int]] = {flow: {} for flow in flows}
    runs, steps = nothing | by_name(fields, "run"), by_name(fields, "step")
    ended: list[Sample] = [
        ((flow, state.value), counts.get(state, 0))
        for flow, counts in runs.items()
        for state in _ENDS
    ]
    yield counter("runs_ended", "Runs that ended", ended, ("flow", "state"))
    seconds = {name: _buckets(counts) for name, counts in steps.items()}
    returned: list[Sample] = [((name, "done"), each[-1]) for name, each in seconds.items()]
    failed: list[Sample] = [
        ((name, "failed"), counts.get(Happened.FAILED, 0)) for name, counts in steps.items()
    ]
    yield counter("steps_ended", "Steps and tasks that ended", returned + failed, ("step", "state"))
    for what, (family, text) in _RARE.items():
        samples: list[Sample] = [((name,), counts.get(what, 0)) for name, counts in steps.items()]
        yield counter(family, text, samples, _STEP)
    took = HistogramMetricFamily("agentq_step_seconds", "That done ones took", labels=_STEP)
    for name, each in seconds.items():
        total_s = steps[name].get(Happened.MILLISECONDS, 0) / 1000
        took.add_metric((name,), list(zip(_UPPER_ENDS, each, strict=True)), total_s)
    yield took


def _buckets(counts: Mapping[str, int]) -> list[int]:
    """Return how many took at most so long, for each of the upper ends."""
    return list(accumulate(counts.get(bucket(n), 0) for n in range(len(_UPPER_ENDS))))
