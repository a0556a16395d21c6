"""The ledger counts exactly, over processes and forks."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentq.ops.bench.ledger import PATH_VARIABLE, Ledger, Mark, Tally

TICK = (
    "import sys; from agentq.ops.bench.ledger import Ledger; ledger = Ledger.from_environment()\n"
    "for _ in range(int(sys.argv[1])): ledger.tick()"
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger")


def test_nothing_is_counted_before_the_first_tick(ledger: Ledger) -> None:
    assert ledger.read(Mark.JOIN) == Tally(0, 0.0, 0.0)


def test_executions_of_processes_that_run_at_once_are_all_counted(
    ledger: Ledger, tmp_path: Path
) -> None:
    environment = {**os.environ, PATH_VARIABLE: str(tmp_path / "ledger")}
    started = time.monotonic()
    command = [sys.executable, "-c", TICK, "5000"]
    processes = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [process.wait(20) for process in processes] == [0, 0, 0, 0]
    tally = ledger.read()
    assert tally.count == 20_000
    assert started < tally.first < tally.last < time.monotonic()


def test_a_forked_child_takes_a_slot_of_its_own(ledger: Ledger) -> None:
    ledger.tick()
    if not (child := os.fork()):
        ledger.tick()
        os._exit(0)
    os.waitpid(child, 0)
    ledger.tick()
    assert ledger.read().count == 3


def test_marks_are_counted_apart(ledger: Ledger) -> None:
    for mark in (Mark.STEP, Mark.STEP, Mark.JOIN, Mark.REVIEW):
        ledger.tick(mark)
    assert [ledger.read(mark).count for mark in Mark] == [2, 1, 1]


def test_waiting_ends_with_what_there_is_when_the_time_is_over(ledger: Ledger) -> None:
    ledger.tick()
    assert ledger.wait(Mark.STEP, count=2, timeout_s=0.01).count == 1
