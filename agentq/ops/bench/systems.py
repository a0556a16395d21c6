"""The systems that are compared: how each is started, and how much of each test it is given.

Plain Celery takes as many processes as the machine has cores for no-ops, and `_SLEEP_PROCESSES`
where steps wait, since a prefork process waits for one step at a time. Its slow tests are given
less than their defined size; what is extrapolated from that says so in its row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from agentq.errors import BenchFailed
from agentq.ops.bench.rows import Test

BASELINE = "celery"
CANDIDATE = "agentq"

SLEEPERS = 5000
PIPELINES = 200
WIDTHS = (10, 100, 1000, 5000)

_SLEEP_PROCESSES = 64
_SLOTS = 5000
_LONG_STEPS = (Test.SLEEP, Test.PIPELINE)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many executions of each test are measured.

    Attributes:
        enqueue: one by one, in each of three rounds.
        bulk: in one call, in each of three rounds.
        drain: preloaded no-ops.
        latency: calls, one after the other.
        sleep: steps of one second; the makespan is extrapolated to `SLEEPERS`.
        pipeline: pipelines at once; the makespan is extrapolated to `PIPELINES`.
        sleepers: what the sleep test is defined for.
        pipelines: what the pipeline test is defined for.
        widths: fan-ins.
    """

    enqueue: int
    bulk: int
    drain: int
    latency: int
    sleep: int
    pipeline: int
    sleepers: int = SLEEPERS
    pipelines: int = PIPELINES
    widths: tuple[int, ...] = WIDTHS

    def scaled(self, scale: float) -> Sizes:
        """Return every size times *scale*, at least 1; fan-ins wider than the scale are left out.

        *scale* above 1 lengthens what is measured as a rate and leaves the defined sizes alone.
        """
        shrunk = min(scale, 1.0)
        widest = max(WIDTHS[0], WIDTHS[-1] * shrunk)
        return Sizes(
            enqueue=_times(self.enqueue, scale),
            bulk=_times(self.bulk, scale),
            drain=_times(self.drain, scale),
            latency=_times(self.latency, scale),
            sleep=_times(self.sleep, shrunk),
            pipeline=_times(self.pipeline, shrunk),
            sleepers=_times(self.sleepers, shrunk),
            pipelines=_times(self.pipelines, shrunk),
            widths=tuple(width for width in self.widths if width <= widest),
        )


@dataclass(frozen=True, slots=True)
class System:
    """One system under test.

    Attributes:
        name: as in `Row.system`.
        title: how tables call it.
        sizes: how much it is given.
        drains: ways to enqueue the drained no-ops; the one named ``""`` is the headline.
    """

    name: str
    title: str
    sizes: Sizes
    drains: tuple[str, ...] = ("",)

    def worker(self, test: Test) -> list[str]:
        """Return the command of the worker for *test*: one process that has all the work."""
        if self.name == BASELINE:
            return _celery_worker(test, self.sizes)
        return worker_of("agentq.ops.bench.agentq_app:aq")

    def environment(self, *, url: str, socket: Path, test: Test) -> Mapping[str, str]:
        """Return what producer and worker need to find the server."""
        if self.name == BASELINE:
            return {
                "BENCH_AGENTQ_CELERY_URL": f"redis+socket://{quote(str(socket))}?virtual_host=0",
                # Long steps are taken one by one, no-ops in batches: the best of each.
                "BENCH_AGENTQ_PREFETCH": "1" if test in _LONG_STEPS else "64",
            }
        # Events are off on both sides: Celery's default, and nobody watches a benchmark.
        return {
            "AGENTQ_BROKER__URL": url,
            "AGENTQ_WORKER__EVENTS": "false",
            "AGENTQ_LOG__LEVEL": "WARNING",
        }


_CELERY = System(
    BASELINE,
    "Celery prefork",
    Sizes(enqueue=1000, bulk=1000, drain=3000, latency=1000, sleep=640, pipeline=40),
)
_AGENTQ = System(
    CANDIDATE,
    "agentq",
    Sizes(
        enqueue=2000,
        bulk=10_000,
        drain=20_000,
        latency=1000,
        sleep=SLEEPERS,
        pipeline=PIPELINES,
    ),
    drains=("", "@app.task"),
)
SYSTEMS = (BASELINE, CANDIDATE)


def system(name: str, *, scale: float) -> System:
    """Return the system called *name*, its sizes times *scale*.

    Raises:
        BenchFailed: if there is none of that name.
    """
    for known in (_CELERY, _AGENTQ):
        if known.name == name:
            return replace(known, sizes=known.sizes.scaled(scale))
    raise BenchFailed(f"unknown system {name!r}: choose from {', '.join(SYSTEMS)}")


def _celery_worker(test: Test, sizes: Sizes) -> list[str]:
    cores = len(os.sched_getaffinity(0))
    waiting = max(cores, min(_SLEEP_PROCESSES, sizes.sleep))
    processes = waiting if test in _LONG_STEPS else cores
    return [
        *(sys.executable, "-m", "celery", "-A", "agentq.ops.bench.celery_app", "worker"),
        *("--pool", "prefork", "--concurrency", str(processes), "--loglevel", "warning"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        *("--hostname", "bench@localhost"),
    ]


def worker_of(app: str, *, pool: str = "shared", slots: int = _SLOTS) -> list[str]:
    """Return the command of an agentq worker of *app*, ``module:attribute``."""
    return [
        *(sys.executable, "-m", "agentq", "worker", "--pool", pool),
        *("--slots", str(slots), "-A", app),
    ]


def _times(size: int, scale: float) -> int:
    return max(1, round(size * scale))
