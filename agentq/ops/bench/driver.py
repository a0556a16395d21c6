"""Runs the chosen tests on the chosen systems, one after the other, and collects the rows."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from agentq.errors import BenchFailed
from agentq.ops.bench import calibration
from agentq.ops.bench.arena import Arena
from agentq.ops.bench.calibration import Calibration, calibrate, worse
from agentq.ops.bench.rows import ALONE, Better, Row, Test
from agentq.ops.bench.systems import SYSTEMS, System, system
from agentq.ops.bench.trials import run_test

Progress = Callable[[str], None]


def run_bench(
    tests: Sequence[str],
    *,
    systems: Sequence[str] = SYSTEMS,
    scale: float = 1.0,
    progress: Progress | None = None,
    server: Path | None = None,
) -> list[Row]:
    """Measure *tests* on *systems*, both on private servers of one program; under four minutes.

    Must be called from the main thread: the servers end with it. A test that fails gives a row
    with `value` None and the reason as its note; the others go on.

    Args:
        tests: names of `Test`, or ``all``.
        systems: ``celery`` (plain Celery prefork), ``agentq``.
        scale: multiplies how much is measured; 0.01 is a smoke test.
        progress: gets a line before each measurement.
        server: the server program; None takes the one that `agentq up` would.

    Raises:
        BenchFailed: an unknown test or system, a scale that is not positive, or not on Linux.
        ServerNotFound: there is no Valkey or Redis to start.
    """
    chosen = _chosen(tests)
    if scale <= 0:
        raise BenchFailed(f"scale is {scale:g}: it multiplies the sizes, so it must be positive")
    if sys.platform != "linux":
        raise BenchFailed("the benchmark reads CPU times from /proc: run it on Linux")
    contenders = [system(name, scale=scale) for name in systems]
    rows: list[Row] = []
    with _ending_in_order():
        for test in chosen:
            for contender in contenders:
                if progress:
                    progress(f"{test} on {contender.title}")
                rows += _measure(test, contender, server)
    return rows


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Have SIGTERM unwind the stack, as Ctrl-C does, so that workers and server are ended."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _chosen(tests: Sequence[str]) -> list[Test]:
    known = [test.value for test in Test]
    if unknown := [name for name in tests if name not in {*known, "all"}]:
        raise BenchFailed(
            f"unknown test {unknown[0]!r}: choose from {', '.join(known)} or all; or, by itself, "
            f"one of {', '.join(ALONE)}"
        )
    return [test for test in Test if test in tests or "all" in tests]


def _measure(test: Test, contender: System, server: Path | None) -> list[Row]:
    before = calibrate()
    try:
        with Arena(system=contender, test=test, program=server) as arena:
            rows = run_test(arena)
    except BenchFailed as failure:
        rows = [Row(test, contender.name, "failed", "", None, 0, Better.NEITHER, note=str(failure))]
    return [*rows, *_calibration_rows(test, contender, worse(before, calibrate()))]


def _calibration_rows(test: Test, contender: System, seen: Calibration) -> list[Row]:
    note = (
        f"machine busy (wall {seen.contention:.2f} x CPU) during {test} on {contender.title}: "
        "do not quote"
        if seen.busy
        else ""
    )
    return [
        Row(test, contender.name, measure, "ms", value, 1, Better.NEITHER, note=note)
        for measure, value in ((calibration.WALL, seen.wall_ms), (calibration.CPU, seen.cpu_ms))
    ]
