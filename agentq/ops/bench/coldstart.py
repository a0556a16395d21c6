"""How much later the first step of a new worker ends than one of a warm worker.

A worker is started, and when it says that it is ready a step is enqueued, then more, one after the
other. Its step needs a table that takes a third of a second to make: with `@aq.warm` it is made
before readiness. Beside it the same worker without: its first step makes the table.
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from statistics import median

from agentq.ops.bench.arena import Arena, Worker
from agentq.ops.bench.figures import Figure
from agentq.ops.bench.offer import offer
from agentq.ops.bench.rows import Test
from agentq.ops.bench.systems import CANDIDATE, system, worker_of
from agentq.store.address import parse
from agentq.store.client import Store

WARM_VARIABLE = "BENCH_AGENTQ_WARM"
"""Where it is set, the app declares its warming."""

WORKERS = 5
STEPS = 20
MOST_LATER_MS = 50.0

_APP = "agentq.ops.bench.coldstart_app"
_LIMIT_S = 60.0
_REST_S = 0.05


def measure_coldstart(
    *, workers: int = WORKERS, steps: int = STEPS, server: Path | None = None
) -> list[Figure]:
    """Start *workers* with and without warming, in turns; takes about half a minute.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
        BenchFailed: a worker ended, or did not do its steps.
    """
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(workers):
        for warm, times in found.items():
            times.append(_first_and_later(warm=warm, steps=steps, server=server))
    figures = []
    for warm, limit in ((True, MOST_LATER_MS), (False, None)):
        name = "with aq.warm" if warm else "without"
        first, later = (median(times[place] for times in found[warm]) for place in (0, 1))
        figures += [
            Figure(f"{name}: a warm worker's step, from enqueue to end", later, "ms"),
            Figure(f"{name}: a new worker's first step", first, "ms"),
            Figure(f"{name}: later by", first - later, "ms", limit),
        ]
    return figures


def _first_and_later(*, warm: bool, steps: int, server: Path | None) -> tuple[float, float]:
    """Return what the first step took and the median of those behind it, in ms."""
    variables = {WARM_VARIABLE: "1"} if warm else {}
    with Arena(system=system(CANDIDATE, scale=1), test=Test.LATENCY, program=server) as arena:
        store = Store(address=parse(arena.url), timeout=timedelta(seconds=30))
        try:
            with arena.worker(worker_of(f"{_APP}:aq"), variables) as worker:
                worker.await_ready(timeout_s=_LIMIT_S)
                first, *later = (
                    _took_ms(arena, worker, store, number) for number in range(1 + steps)
                )
                return first, median(later)
        finally:
            store.close()


def _took_ms(arena: Arena, worker: Worker, store: Store, number: int) -> float:
    began = time.monotonic()
    offer(store, f"{_APP}.answer", number)
    tally = arena.await_steps(number + 1, worker=worker, timeout_s=_LIMIT_S)
    time.sleep(_REST_S)  # an idle worker's step is what is compared
    return (tally.last - began) * 1000
