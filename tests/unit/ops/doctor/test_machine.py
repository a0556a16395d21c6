"""What doctor finds on a machine: each check on one that is well, and on one that is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from agentq.ops.doctor import machine
from agentq.ops.doctor.finding import Finding
from agentq.ops.doctor.roots import Roots
from agentq.settings import load_settings
from tests.unit.ops.doctor.kernel import Kernel

Check = Callable[[Roots], Iterable[Finding]]


def processes(roots: Roots) -> Iterable[Finding]:
    return machine.processes(roots, need=500)


CHECKS: dict[str, Check] = {
    "open_files": machine.open_files,
    "processes": processes,
    "somaxconn": machine.backlog,
    "overcommit": machine.overcommit,
    "max_map_count": machine.maps,
    "huge_pages": machine.huge_pages,
    "governor": machine.governor,
}
LIMITS = "proc/self/limits"
THP = "sys/kernel/mm/transparent_hugepage/enabled"
GOVERNOR = "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor"
CGROUP = "sys/fs/cgroup/pids/user/one/pids.max"
PAIRS = [
    ("open_files", LIMITS, "1048576", "4096", "4,096 files", "LimitNOFILE=65535"),
    ("open_files", "proc/sys/fs/file-nr", "9223372036854775807", "3100", "3,000", "fs.file-max=6200"),
    ("processes", LIMITS, "96365                96365", "300 400", "ulimit -u) is 400", "LimitNPROC=1000"),
    ("processes", "proc/sys/kernel/threads-max", "192730", "900", "threads-max is 900", "threads-max=1000"),
    ("processes", "proc/sys/kernel/pid_max", "4194304", "999", "pid_max is 999", "kernel.pid_max=1000"),
    ("processes", CGROUP, "max", "64", "pids.max of this control group is 64", "TasksMax=1000"),
    ("processes", "proc/loadavg", "1/400", "1/190000", "190,000 of 192,730", "threads-max=385460"),
    ("somaxconn", "proc/sys/net/core/somaxconn", "4096", "128", "somaxconn is 128", "somaxconn=4096"),
    ("overcommit", "proc/sys/vm/overcommit_memory", "1", "2", "overcommit_memory is 2", "overcommit_memory=1"),
    ("max_map_count", "proc/sys/vm/max_map_count", "65530", "4096", "is 4,096", "max_map_count=65530"),
    ("huge_pages", THP, "always [madvise]", "[always] madvise", "always on", "echo madvise >"),
    ("governor", GOVERNOR, "schedutil", "powersave", "1 cores are clocked by governor 'powersave'", "-g performance"),
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_a_machine_that_is_well_has_no_finding(kernel: Kernel, name: str) -> None:
    assert list(CHECKS[name](kernel.roots)) == []


@pytest.mark.parametrize(("name", "file", "old", "new", "seen", "fix"), PAIRS)
def test_what_is_wrong_is_found_with_the_line_that_mends_it(  # noqa: PLR0913, PLR0917 -- a table
    kernel: Kernel, name: str, file: str, old: str, new: str, seen: str, fix: str
) -> None:
    kernel.replace(file, old, new)
    [found] = CHECKS[name](kernel.roots)
    assert (found.severity, found.name) == ("warning", f"machine.{name}")
    assert seen in found.seen
    assert fix in found.fix


def test_limits_that_are_not_there_are_no_finding(kernel: Kernel) -> None:
    kernel.replace("proc/self/limits", "1048576", "unlimited")
    assert list(machine.open_files(kernel.roots)) == []


def test_a_machine_that_shows_no_governor_says_so(kernel: Kernel) -> None:
    for core in (0, 1):
        kernel.drop(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor")
    [found] = machine.governor(kernel.roots)
    assert (found.severity, found.seen[:12]) == ("note", "not checked:")


def test_jemalloc_is_missed_where_a_pool_asks_for_it() -> None:
    settings = load_settings(overrides={"pools.shared.allocator": "glibc"})
    [found] = machine.allocator(settings, installed=None)
    assert found.seen == "jemalloc is not there; critical would run on glibc"
    assert "apt install libjemalloc2" in found.fix
    assert list(machine.allocator(settings, installed=Path("libjemalloc.so.2"))) == []
    both = {"pools.shared.allocator": "glibc", "pools.critical.allocator": "glibc"}
    assert list(machine.allocator(load_settings(overrides=both), installed=None)) == []


def test_a_single_core_is_said() -> None:
    assert [one.severity for one in machine.one_core(1)] == ["note"]
    assert list(machine.one_core(2)) == []


def test_the_need_grows_with_processes_threads_and_cores() -> None:
    settings = load_settings(overrides={"worker.threads": 8, "worker.suspects": 1})
    small = machine.needed(settings, cores=1)
    assert machine.needed(settings, cores=2) > small
    more = load_settings(
        overrides={"worker.threads": 8, "worker.suspects": 1, "pools.shared.processes": 3}
    )
    assert machine.needed(more, cores=1) == 2 * small
