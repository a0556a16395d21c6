"""What `worker.slots_mode` does to steps that compute on the loop, and to steps that wait.

A burst into an idle worker of 1,000 slots, with fixed and with adaptive slots, in turns. What
counts is when a step of the burst has ended, on average: steps that share a core all end late
together, and the same steps one after the other end, on average, half way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median

from agentq.ops.bench.arena import Arena, Worker
from agentq.ops.bench.figures import Figure
from agentq.ops.bench.ledger import Mark
from agentq.ops.bench.offer import offer
from agentq.ops.bench.rows import Test
from agentq.ops.bench.systems import CANDIDATE, system, worker_of
from agentq.store.address import parse
from agentq.store.client import Store

ROUNDS = 3
BURSTS = (("compute", 200), ("wait", 1000))
MODES = ("fixed", "adaptive")

_APP = "agentq.ops.bench.slots_app"
_SLOTS = 1000
_LIMIT_S = 120.0
_LOOK_S = 0.05


def measure_slots(
    *,
    rounds: int = ROUNDS,
    bursts: Sequence[tuple[str, int]] = BURSTS,
    modes: Sequence[str] = MODES,
    server: Path | None = None,
) -> list[Figure]:
    """Measure each of *bursts* (step, how many) in both modes; takes about two minutes.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
        BenchFailed: the worker ended, or did not do its steps.
    """
    figures = []
    for step, count in bursts:
        found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
        for _ in range(rounds):
            for mode, ends in found.items():
                ends.append(_ends(mode, step, count, server))
        for mode, ends in found.items():
            name = f"{count:,} that {step}, {mode}"
            mean, last = (median(end[place] for end in ends) for place in (0, 1))
            figures += [
                Figure(f"{name}: a step has ended after, on average", mean, "s"),
                Figure(f"{name}: the last one after", last, "s"),
            ]
    return figures


def _ends(mode: str, step: str, count: int, server: Path | None) -> tuple[float, float]:
    """Return when the steps of one burst had ended, on average and at last, in seconds."""
    with Arena(system=system(CANDIDATE, scale=1), test=Test.SLEEP, program=server) as arena:
        store = Store(address=parse(arena.url), timeout=timedelta(seconds=30))
        variables = {"AGENTQ_WORKER__SLOTS_MODE": mode}
        try:
            with arena.worker(worker_of(f"{_APP}:aq", slots=_SLOTS), variables) as worker:
                worker.await_ready(timeout_s=_LIMIT_S)
                began = time.monotonic()
                offer(store, f"{_APP}.{step}", 0, count=count)
                mean = _mean_s(arena, worker, count, began)
                return mean, arena.ledger.read(Mark.STEP).last - began
        finally:
            store.close()


def _mean_s(arena: Arena, worker: Worker, count: int, began: float) -> float:
    """Watch the burst to its end; return the average: the area above the count of those ended."""
    area, before, done = 0.0, began, 0
    while done < count:
        worker.require_alive()
        time.sleep(_LOOK_S)
        now = time.monotonic()
        area += (count - done) * (now - before)
        before, done = now, arena.ledger.read(Mark.STEP).count
    return area / count
