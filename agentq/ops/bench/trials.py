"""The six tests: what each does, and the figures it gives.

Executions are counted in the ledger, CPU seconds come from /proc of the whole process trees.

enqueue   a producer alone: no-ops one by one and in bulk, results to be stored
drain     a worker on preloaded no-ops, results stored; CPU between 10 % and 90 % of them
latency   an idle system, one call after the other: round trip, and pick-up (sent to started)
sleep     preloaded steps of 1 s: makespan from the start of the first, peak memory of the tree
fanin     n members and a body that gets all results: from the call to the body's start
pipeline  plan -> 20 x 50 ms -> review, many at once: from the first submit to the last review
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from agentq.errors import BenchFailed
from agentq.ops.bench.arena import Arena
from agentq.ops.bench.gauge import Cost
from agentq.ops.bench.ledger import Tally
from agentq.ops.bench.rows import Row, Test

_TIMEOUT_S = 60.0  # for a worker to start and do all that waits
_SLEEP_S = 1.0


def run_test(arena: Arena) -> list[Row]:
    """Run the arena's test once and return its rows.

    Raises:
        BenchFailed: if it did not end within its time, or a process of it failed.
    """
    match arena.test:
        case Test.ENQUEUE:
            return _enqueue(arena)
        case Test.DRAIN:
            return _drains(arena)
        case Test.LATENCY:
            with arena.worker() as worker:
                return arena.produce("latency", worker=worker, n=arena.system.sizes.latency)
        case Test.SLEEP:
            return _sleep(arena)
        case Test.FANIN:
            with arena.worker() as worker:
                return arena.produce("fanin", worker=worker, widths=arena.system.sizes.widths)
        case Test.PIPELINE:
            return _pipeline(arena)
        case _:
            assert_never(arena.test)


def _enqueue(arena: Arena) -> list[Row]:
    sizes = arena.system.sizes
    return arena.produce("enqueue", n=sizes.enqueue, bulk=sizes.bulk)


def _pipeline(arena: Arena) -> list[Row]:
    sizes = arena.system.sizes
    with arena.worker() as worker:
        return arena.produce("pipeline", worker=worker, n=sizes.pipeline, defined=sizes.pipelines)


def _drains(arena: Arena) -> list[Row]:
    rows: list[Row] = []
    for variant in arena.system.drains:
        rows += _drain(arena, variant)
    return rows


def _drain(arena: Arena, variant: str) -> list[Row]:
    n = arena.system.sizes.drain
    if variant:  # beside the headline, and enqueued one by one: a quarter is enough
        n = max(2, n // 4)
    before = arena.ledger.read().count
    arena.produce("preload", n=n, variant=variant)
    with arena.worker() as worker:
        gauge = arena.gauge(worker)
        samples = []
        for share in (0.1, 0.9):
            done = before + round(n * share)
            tally = arena.await_steps(done, worker=worker, timeout_s=_TIMEOUT_S)
            samples.append((tally, gauge.read()))
        arena.await_steps(before + n, worker=worker, timeout_s=_TIMEOUT_S)
        held = worker.memory()
    (first, earlier), (last, later) = samples
    rows = [
        *_drain_rows(arena, first=first, last=last, cost=later - earlier),
        arena.row("peak RSS", "MB", held.peak_rss, n=n),
    ]
    return [replace(row, variant=variant) for row in rows]


def _drain_rows(arena: Arena, *, first: Tally, last: Tally, cost: Cost) -> list[Row]:
    steps = last.count - first.count
    if not steps:
        raise BenchFailed("the drain was over before it could be sampled: measure more steps")
    return [
        arena.row(measure, unit, value, n=steps)
        for measure, unit, value in (
            ("worker + Redis CPU", "us/step", (cost.workers_s + cost.server_s) / steps * 1e6),
            ("worker CPU", "us/step", cost.workers_s / steps * 1e6),
            ("Redis CPU", "us/step", cost.server_s / steps * 1e6),
            ("rate", "steps/s", steps / (last.last - first.last)),
            ("Redis round trips", "1/step", cost.round_trips / steps),
            ("Redis commands", "1/step", cost.commands / steps),
        )
    ]


def _sleep(arena: Arena) -> list[Row]:
    n, defined = arena.system.sizes.sleep, arena.system.sizes.sleepers
    arena.produce("preload-sleepers", n=n, seconds=_SLEEP_S)
    with arena.worker() as worker:
        tally = arena.await_steps(n, worker=worker, timeout_s=_TIMEOUT_S)
        held = worker.memory()
    makespan = (tally.last - tally.first + _SLEEP_S) * defined / n
    on = f"{held.processes} process{'es' if held.processes > 1 else ''}"
    scaled = "" if n == defined else f"extrapolated from {n:,} on "
    name = f"{defined:,} sleeps"
    makespan_row = arena.row(f"{name} of 1 s", "s", makespan, n=n)
    return [
        replace(makespan_row, note=scaled + on),
        replace(arena.row(f"{name}: peak RSS", "MB", held.peak_rss, n=n), note=on),
        replace(arena.row(f"{name}: PSS", "MB", held.pss, n=n), note=on),
    ]
