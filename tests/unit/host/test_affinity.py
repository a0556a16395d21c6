"""Pinning, on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentq.errors import SettingsError
from agentq.host.affinity import Affinity, effective, pin
from agentq.host.topology import allowed_cores

# One thread before it is told to go on, one after.
_TWO_THREADS = """
import os, threading
stay = threading.Event()
def show(): print(sorted(os.sched_getaffinity(0)), flush=True)
def first(): go.wait(); show(); stay.wait()
go = threading.Event()
threading.Thread(target=first, daemon=True).start()
print("ready", flush=True)
input(); go.set()
input(); late = threading.Thread(target=show); late.start(); late.join()
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _TWO_THREADS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert read(process) == "ready"
        yield process
        process.kill()


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def test_threads_from_before_and_after_stay_on_the_cores(program: subprocess.Popen[str]) -> None:
    last = allowed_cores()[-1]
    pinned = pin([last], pid=program.pid)
    assert pinned == Affinity(requested=(last,), effective=(last,))
    assert str(pinned) == f"core {last}"
    go_on(program)
    assert read(program) == f"[{last}]"
    go_on(program)
    assert read(program) == f"[{last}]"


def test_what_the_kernel_leaves_out_is_said(program: subprocess.Popen[str]) -> None:
    last = allowed_cores()[-1]
    pinned = pin([last, 4000], pid=program.pid)
    assert pinned == Affinity(requested=(last, 4000), effective=(last,))
    assert str(pinned) == f"core {last} (asked for {last},4000)"


@pytest.mark.parametrize(("cores", "named"), [([4000], "4000"), ([], "(none)")])
def test_cores_that_are_not_there_are_refused_and_nothing_changes(
    program: subprocess.Popen[str], cores: list[int], named: str
) -> None:
    with pytest.raises(SettingsError, match=rf"cores {named.replace('(', '.').replace(')', '.')} "):
        pin(cores, pid=program.pid)
    assert effective(pid=program.pid) == allowed_cores()


def test_effective_is_what_the_kernel_says_of_this_process() -> None:
    assert effective() == tuple(sorted(os.sched_getaffinity(0)))
