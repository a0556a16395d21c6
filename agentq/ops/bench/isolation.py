"""Whether pool critical notices a flood in pool shared, and what pinning and jemalloc bring.

A worker for each pool and a private server. Urgent steps are enqueued one by one and it is noted
when each begins: first with nothing else, then while the other worker drains a queue of no-ops as
fast as it can, which is as much as one process can ask of the server. The same with both workers on
all cores, and with both on glibc. The server is nobody's: the kernel puts it where there is room.

Its append-only file is not rewritten meanwhile (`auto-aof-rewrite-min-size`): in such a flood that
comes once in half a minute, and urgent steps wait some ms for the disk at its end.

Shares of urgent steps are taken over all rounds together; the machine must have a core for each of
the three (two workers, server) or they wait for one another, and the first figure says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles

from agentq.host.topology import allowed_cores, format_cores
from agentq.ops.bench.arena import Arena, Worker
from agentq.ops.bench.figures import Figure
from agentq.ops.bench.ledger import Mark
from agentq.ops.bench.offer import offer
from agentq.ops.bench.rows import Test
from agentq.ops.bench.systems import CANDIDATE, system, worker_of
from agentq.store.address import parse
from agentq.store.client import Store

CALLS = 300
FLOOD = 120_000
ROUNDS = 3
MOST_SLOWER = 2.0

_APP = "agentq.ops.bench.isolation_app"
_LIMIT_S = 60.0
_REST_S = 0.005
_WAY_S = 0.5
"""How long the flood runs before anything is measured."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How both workers are run."""

    name: str
    pinned: bool = True
    allocator: str = "jemalloc"


VARIANTS = (
    Variant("as agentq up does"),
    Variant("not pinned", pinned=False),
    Variant("on glibc", allocator="glibc"),
)


@dataclass(slots=True)
class Found:
    """Of one variant: pick-ups in ms, and the flood's rates in steps/s, over all rounds."""

    idle: list[float] = field(default_factory=list)
    flooded: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


def measure_isolation(
    *,
    calls: int = CALLS,
    flood: int = FLOOD,
    rounds: int = ROUNDS,
    variants: Sequence[Variant] = VARIANTS,
    server: Path | None = None,
) -> list[Figure]:
    """Measure *variants* in turns, *rounds* times; takes about three minutes.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
        BenchFailed: a worker ended, or did not do its steps.
    """
    found = {variant: Found() for variant in variants}
    for _ in range(rounds):
        for variant, sums in found.items():
            _round(variant, sums, calls, flood, server)
    figures = [Figure("cores that may be used", len(allowed_cores()), "cores")]
    for place, (variant, sums) in enumerate(found.items()):
        idle, flooded = _p99(sums.idle), _p99(sums.flooded)
        figures += [
            Figure(f"{variant.name}: pick-up p50, idle", median(sums.idle), "ms"),
            Figure(f"{variant.name}: pick-up p50, flooded", median(sums.flooded), "ms"),
            Figure(f"{variant.name}: pick-up p99, idle", idle, "ms"),
            Figure(f"{variant.name}: pick-up p99, flooded", flooded, "ms"),
            Figure(
                f"{variant.name}: p99 flooded to idle", flooded / idle, "times",
                None if place else MOST_SLOWER,
            ),
            Figure(f"{variant.name}: the flood's rate", median(sums.rates), "steps/s"),
        ]  # fmt: skip
    return figures


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def _round(variant: Variant, sums: Found, calls: int, flood: int, server: Path | None) -> None:
    with (
        Arena(system=system(CANDIDATE, scale=1), test=Test.LATENCY, program=server) as arena,
        contextlib.ExitStack() as stack,
    ):
        store = Store(address=parse(arena.url), timeout=timedelta(seconds=30))
        stack.callback(store.close)
        critical, shared = (
            stack.enter_context(arena.worker(*_worker(pool, variant)))
            for pool in ("critical", "shared")
        )
        for worker in (critical, shared):
            worker.await_ready(timeout_s=_LIMIT_S)
        sums.idle += _pick_ups_ms(arena, critical, store, calls)
        offer(store, f"{_APP}.bulk", 0, count=flood)
        began, before = time.monotonic(), arena.ledger.read(Mark.STEP).count
        time.sleep(_WAY_S)
        sums.flooded += _pick_ups_ms(arena, critical, store, calls)
        done = arena.ledger.read(Mark.STEP).count
        shared.require_alive()
        if done < flood:
            sums.rates.append((done - before) / (time.monotonic() - began))
        else:
            last = arena.ledger.read(Mark.STEP).last
            sums.rates.append((done - before) / (last - began))


def _worker(pool: str, variant: Variant) -> tuple[list[str], dict[str, str]]:
    command = worker_of(f"{_APP}:aq", pool=pool, slots=1000)
    if not variant.pinned:
        command += ["--cores", format_cores(os.sched_getaffinity(0))]
    name = f"AGENTQ_POOLS__{pool.upper()}__ALLOCATOR"
    return command, {name: variant.allocator}


def _pick_ups_ms(arena: Arena, worker: Worker, store: Store, calls: int) -> list[float]:
    before = arena.ledger.read(Mark.JOIN).count
    found = []
    for number in range(before, before + calls):
        sent = time.monotonic()
        offer(store, f"{_APP}.urgent", number, pool="critical")
        tally = arena.await_steps(number + 1, mark=Mark.JOIN, worker=worker, timeout_s=_LIMIT_S)
        found.append((tally.last - sent) * 1000)
        time.sleep(_REST_S)
    return found
