"""Limits: raised in a process of its own, planned, and how much of them is in use."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from agentq.errors import BrokerUnavailable
from agentq.host.limits import Limits, exhausted, needs, uses
from tests.unit.host.machines import write, write_host

_RAISE = """
import resource, sys
from agentq.host.limits import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 512))
raised = raise_open_files()
print(raised, (raised.before, raised.now, raised.hard), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             500                  500                  processes
Max open files            100                  524288               files
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 512, reason="limit is low")
@pytest.mark.parametrize(
    ("soft", "said"),
    [
        ("64", "open files: 512 (raised from 64) (64, 512, 512) (512, 512)"),
        ("512", "open files: 512 (512, 512, 512) (512, 512)"),
    ],
)
def test_the_soft_limit_becomes_the_hard_one_and_the_real_value_is_said(
    soft: str, said: str
) -> None:
    command = [sys.executable, "-c", _RAISE, soft]
    assert subprocess.check_output(command, text=True).strip() == said


def test_use_is_read_beside_its_limit_and_a_finding_from_four_fifths_on(tmp_path: Path) -> None:
    root = write_host(tmp_path)
    write(root, "proc/7/limits", _LIMITS.rstrip())
    write(root, "proc/7/cgroup", "0::/")
    write(root, "proc/7/maps", "a\nb")
    write(root, "proc/7/status", "Name:\tx\nUid:\t1000\t1000\t1000\t1000")
    for number in range(80):
        write(root, f"proc/7/fd/{number}", "")
    for thread in (7, 8):
        write(root, f"proc/7/task/{thread}/comm", "x")
    write(root, "sys/fs/cgroup/pids.max", 100)
    write(root, "sys/fs/cgroup/pids.current", 79)
    found = {use.name: use for use in uses(7, root=root, users_threads=True)}
    assert {name: (use.used, use.limit) for name, use in found.items()} == {
        "open files": (80, 100),
        "threads of the user": (2, 500),
        "threads of the group": (79, 100),
        "threads of the machine": (300, 1_000_000),
        "memory mappings": (2, 65_530),
    }
    assert found["threads of the group"].finding() is None
    finding = found["open files"].finding()
    assert finding is not None
    assert (finding.severity, finding.seen) == ("warning", "80 of 100 in use (RLIMIT_NOFILE)")
    assert finding.remedy == "LimitNOFILE=65535 in the unit"


def test_a_process_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(ProcessLookupError):
        uses(7, root=write_host(tmp_path))


def test_what_the_plan_needs_stands_beside_what_there_is() -> None:
    limits = Limits(open_files=4096, tasks=250, threads=500, pids=100_000, backlog=128)
    found = {
        need.name: need for need in needs(limits, tasks=100, most_tasks=60, open_files=100_000)
    }
    assert {name for name, need in found.items() if not need.met} == {
        "open files", "threads of the group", "waiting connections",
    }  # fmt: skip
    assert found["open files"].need == 100_000
    assert found["threads of the group"].need == 300
    assert "TasksMax=180" in found["threads of the group"].remedy
    assert found["waiting connections"].remedy == "sysctl -w net.core.somaxconn=1024"
    assert found["memory mappings"].value is None  # not known here: no finding


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "open files"),
        (OSError(errno.ENFILE, "Too many open files in system"), "open files"),
        (RuntimeError("can't start new thread"), "threads"),
        (RuntimeError("something else"), None),
        (OSError(errno.ECONNREFUSED, "Connection refused"), None),
    ],
)
def test_an_error_that_comes_from_a_limit_is_known_however_it_is_wrapped(
    error: Exception, name: str | None
) -> None:
    wrapped = BrokerUnavailable("the broker can not be reached")
    wrapped.__cause__ = error
    assert exhausted(error) == exhausted(wrapped) == name


def test_a_fork_server_that_could_not_fork_has_met_the_limit_of_threads() -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    with pytest.raises(EOFError) as found:
        forkserver.read_signed(ours)
    os.close(ours)
    assert exhausted(found.value) == "threads"
    assert exhausted(EOFError("of something else")) is None


def test_a_full_shared_memory_is_named_where_a_semaphore_finds_no_room() -> None:
    taken = "import multiprocessing as m; from agentq.host.limits import fullest\n"
    taken += "try: m.get_context('spawn').Lock()\nexcept OSError as error: print(fullest(error))"
    full = f'mount -t tmpfs -o ro none /dev/shm && {sys.executable} -c "$0"'
    command = ["/usr/bin/unshare", "--mount", "sh", "-c", full, taken]
    if (
        os.geteuid()
        or not Path("/usr/bin/unshare").exists()
        or subprocess.run(["/usr/bin/unshare", "--mount", "true"], check=False).returncode
    ):
        pytest.skip("needs a name space of its own, for another /dev/shm")
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(
        "no semaphore in /dev/shm (df -h /dev/shm): [Errno 30] Read-only"
    )
