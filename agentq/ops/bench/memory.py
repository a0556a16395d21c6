"""What a worker keeps of a burst: resident memory afterwards, under jemalloc beside glibc.

Workers with our settings for each allocator (glibc's are two arenas), in turns, each fresh. A burst
of steps that carry, hold and return JSON of 50 KB, many at once and freed in no order, some of them
in threads; then nothing, until memory is settled. What is settled is what the machine does not get
back, and what differs: the peak is the work's own.

Then leaks: a worker's settled memory after 100,000 runs of one step, beside that after 10,000.
"""

from __future__ import annotations

import random
import string
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from agentq.host.preload import find_library
from agentq.host.process import rss_bytes
from agentq.ops.bench.arena import Arena
from agentq.ops.bench.figures import Figure
from agentq.ops.bench.offer import offer
from agentq.ops.bench.rows import Test
from agentq.ops.bench.systems import CANDIDATE, system, worker_of
from agentq.store.address import parse
from agentq.store.client import Store

STEPS = 2000
ROUNDS = 3
SETTLE_S = 10.0
"""Twice jemalloc's decay."""
MOST_OF_GLIBC = 0.7
FEW, MANY = 10_000, 100_000
MOST_GROWTH = 1.05

_APP = "agentq.ops.bench.memory_app"
_SLOTS = 200
_PRODUCED = 10_000
"""Runs enqueued at a time: what waits is bounded."""
_LIMIT_S = 120.0
_REST_S = 1.0


@dataclass(frozen=True, slots=True)
class Burst:
    """What one worker held, in MB: before the burst, at most, and when it had settled."""

    before: float
    peak: float
    settled: float


def measure_memory(
    *,
    steps: int = STEPS,
    rounds: int = ROUNDS,
    runs: tuple[int, int] = (FEW, MANY),
    settle_s: float = SETTLE_S,
    server: Path | None = None,
) -> list[Figure]:
    """Measure *rounds* workers under each allocator, then the growth; takes about three minutes.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
        BenchFailed: a worker ended, or did not do its steps in time.
    """
    allocators = ("glibc", "jemalloc") if find_library("jemalloc") else ("glibc",)
    found: dict[str, list[Burst]] = {name: [] for name in allocators}
    for _ in range(rounds):
        for name in allocators:
            found[name].append(_burst(name, steps, settle_s, server))
    return [*_figures(found), *_growth(*runs, settle_s, server)]


def _figures(found: Mapping[str, Sequence[Burst]]) -> list[Figure]:
    figures = []
    for name, bursts in found.items():
        for what in ("before", "peak", "settled"):
            value = median(getattr(burst, what) for burst in bursts)
            figures.append(Figure(f"{name}: {what}", value, "MB"))
    if "jemalloc" in found:
        ours, theirs = (median(b.settled for b in found[n]) for n in ("jemalloc", "glibc"))
        figures.append(Figure("settled, jemalloc to glibc", ours / theirs, "times", MOST_OF_GLIBC))
    return figures


def _burst(allocator: str, steps: int, settle_s: float, server: Path | None) -> Burst:
    with Arena(system=system(CANDIDATE, scale=1), test=Test.DRAIN, program=server) as arena:
        store = Store(address=parse(arena.url), timeout=timedelta(seconds=30))
        variables = {"AGENTQ_POOLS__SHARED__ALLOCATOR": allocator}
        documents = _documents()
        try:
            with arena.worker(worker_of(f"{_APP}:aq", slots=_SLOTS), variables) as worker:
                offer(store, f"{_APP}.digest", documents)
                arena.await_steps(1, worker=worker, timeout_s=_LIMIT_S)
                time.sleep(min(settle_s, _REST_S))
                before = rss_bytes(worker.pid)
                offer(store, f"{_APP}.digest", documents, count=steps)
                arena.await_steps(steps + 1, worker=worker, timeout_s=_LIMIT_S)
                time.sleep(settle_s)
                settled = rss_bytes(worker.pid)
                return Burst(before / 1e6, worker.memory().peak_rss, settled / 1e6)
        finally:
            store.close()


def _growth(few: int, many: int, settle_s: float, server: Path | None) -> list[Figure]:
    """Return what a worker holds after *few* and after *many* runs."""
    held: list[float] = []
    with (
        Arena(system=system(CANDIDATE, scale=1), test=Test.DRAIN, program=server) as arena,
        arena.worker() as worker,
    ):
        done = 0
        for total in (few, many):
            while done < total:
                part = min(_PRODUCED, total - done)
                arena.produce("preload", n=part, variant="")
                done += part
                arena.await_steps(done, worker=worker, timeout_s=_LIMIT_S)
            time.sleep(settle_s)
            held.append(rss_bytes(worker.pid) / 1e6)
    return [
        Figure(f"after {few:,} runs", held[0], "MB"),
        Figure(f"after {many:,} runs", held[1], "MB"),
        Figure("growth between them", held[1] / held[0], "times", MOST_GROWTH),
    ]


def _documents() -> list[dict[str, Any]]:
    """Return some 50 KB: messages as a model is sent, short ones and long ones."""
    chance = random.Random(4)  # noqa: S311 -- the same text each time
    sizes = [200, 500, 1000, 2000, 4000, 8000]
    return [
        {
            "role": "tool",
            "name": f"search-{number}",
            "score": chance.random(),
            "content": "".join(chance.choices(string.ascii_letters + " ", k=chance.choice(sizes))),
        }
        for number in range(20)
    ]
