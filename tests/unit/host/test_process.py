"""What processes use, measured from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentq.host.process import cpu_seconds, descendants, rss_bytes, usage

_MB = 1 << 20
# Burns 0.3 s in a child that ends and 0.2 s itself, starts a child that stays, holds 64 MB, and
# tells its own CPU time, that of the ended child, and the pid of the one that stays.
_WORK = """
import resource, subprocess, sys, time
burn = "import time\\nwhile time.process_time() < {}: pass"
subprocess.run([sys.executable, "-c", burn.format(0.3)])
exec(burn.format(0.2))
stays = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
stays.stdout.readline()
held = bytearray(64 << 20); held[::4096] = b"x" * len(held[::4096])
waited = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.process_time(), waited.ru_utime + waited.ru_stime, stays.pid, flush=True)
input()
"""


@pytest.fixture
def work() -> Iterator[tuple[int, float, int]]:
    command = [sys.executable, "-c", _WORK]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        own, waited, stays = process.stdout.readline().split()
        yield process.pid, float(own) + float(waited), int(stays)
        process.kill()


def test_cpu_of_ended_children_counts_and_agrees_with_their_own_clocks(
    work: tuple[int, float, int],
) -> None:
    pid, own_and_waited, _ = work
    assert cpu_seconds(pid) == pytest.approx(own_and_waited, abs=0.05)


def test_living_children_are_added(work: tuple[int, float, int]) -> None:
    pid, _, stays = work
    used = usage(pid)
    assert used.pids == (pid, stays)
    assert used.rss_bytes == rss_bytes(pid) + rss_bytes(stays)
    assert used.cpu_seconds == cpu_seconds(pid) + cpu_seconds(stays)


def test_resident_memory_is_in_bytes(work: tuple[int, float, int]) -> None:
    pid, _, stays = work
    assert 64 * _MB < rss_bytes(pid) - rss_bytes(stays) < 80 * _MB


def test_a_child_that_waits_to_be_reaped_is_not_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in descendants(os.getpid())
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid not in descendants(os.getpid())


def test_a_process_that_is_gone_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    for measure in (usage, rss_bytes, cpu_seconds):
        with pytest.raises(ProcessLookupError, match=f"no process {child.pid}"):
            measure(child.pid)


def test_a_program_name_with_brackets_and_spaces_does_not_confuse() -> None:
    rename = "open('/proc/self/comm', 'w').write(') Z 1 ('); print('up', flush=True); input()"
    command = [sys.executable, "-c", rename]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        assert child.pid in descendants(os.getpid())
        child.kill()


def test_the_package_imports_without_psutil() -> None:
    modules = "affinity allocator limits placement process topology".split()  # noqa: SIM905 -- shorter
    hide = "import sys, importlib; sys.modules['psutil'] = None; "
    load = f"[importlib.import_module('agentq.host.' + name) for name in {modules}]"
    subprocess.run([sys.executable, "-c", hide + load], check=True)
