"""What doctor finds on a machine: each check on one that is well, and on one that is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from agentq.host.machine import read_machine
from agentq.host.preload import Preloaded, how_to_install
from agentq.ops.doctor import machine
from agentq.ops.doctor.finding import Finding
from agentq.ops.doctor.roots import Roots
from agentq.ops.plan import plan_of
from agentq.settings import load_settings
from tests.unit.ops.deploy.test_render import rendered
from tests.unit.ops.doctor.kernel import Kernel

Check = Callable[[Roots], Iterable[Finding]]


def plan(roots: Roots) -> Iterable[Finding]:
    settings = load_settings(environ={})
    found = plan_of(settings, cpu_steps=False, machine=read_machine(root=roots.root))
    return machine.plan(found, roots)


CHECKS: dict[str, Check] = {
    "plan": plan,
    "open_files": machine.open_files,
    "overcommit": machine.overcommit,
    "huge_pages": machine.huge_pages,
    "governor": machine.governor,
}
LIMITS = "proc/self/limits"
KERNEL = "proc/sys/kernel/threads-max"
BACKLOG = "proc/sys/net/core/somaxconn"
MAPS = "proc/sys/vm/max_map_count"
OVERCOMMIT = "proc/sys/vm/overcommit_memory"
THP = "sys/kernel/mm/transparent_hugepage/enabled"
GOVERNOR = "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor"
PAIRS = [
    ("plan", "open_files", LIMITS, "524288", "4096", "4096, and the plan needs", "LimitNOFILE="),
    ("plan", "threads_of_the_machine", KERNEL, "1000000", "90", "90, and", "kernel.threads-max="),
    ("plan", "memory_mappings", MAPS, "65530", "4096", "4096, and", "vm.max_map_count=65530"),
    ("plan", "waiting_connections", BACKLOG, "4096", "128", "128, and", "somaxconn=1024"),
    ("open_files", "open_files", "proc/sys/fs/file-nr", "9223372036854775807", "3100", "3,000", "file-max=6200"),
    ("overcommit", "overcommit", OVERCOMMIT, "1", "2", "memory is 2", "overcommit_memory=1"),
    ("huge_pages", "huge_pages", THP, "always [madvise]", "[always] madvise", "always on", "echo madvise >"),
    ("governor", "governor", GOVERNOR, "schedutil", "powersave", "'powersave'", "-g performance"),
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_a_machine_that_is_well_has_no_finding(kernel: Kernel, name: str) -> None:
    assert list(CHECKS[name](kernel.roots)) == []


@pytest.mark.parametrize(("check", "subject", "file", "old", "new", "seen", "remedy"), PAIRS)
def test_what_is_wrong_is_found_with_the_line_that_mends_it(  # noqa: PLR0913, PLR0917 -- a table
    kernel: Kernel, check: str, subject: str, file: str, old: str, new: str, seen: str, remedy: str
) -> None:
    kernel.replace(file, old, new)
    [found] = CHECKS[check](kernel.roots)
    assert (found.severity, found.subject) == ("warning", f"machine.{subject}")
    assert seen in found.seen
    assert remedy in found.remedy


def test_what_is_installed_already_is_not_to_be_written_again(kernel: Kernel) -> None:
    kernel.replace(LIMITS, "524288", "4096")
    kernel.replace(OVERCOMMIT, "1", "0")
    for name, file in rendered().items():
        kernel.write(name, file.text)
    [files_] = plan(kernel.roots)
    assert files_.remedy.startswith("the installed units have LimitNOFILE=65535 already")
    [memory] = machine.overcommit(kernel.roots)
    assert memory.remedy.startswith(
        "vm.overcommit_memory=1 is in /etc/sysctl.d/60-agentq.conf already: sysctl --system"
    )


def test_a_limit_that_can_not_be_read_is_said(kernel: Kernel) -> None:
    kernel.drop(MAPS)
    [found] = plan(kernel.roots)
    assert (found.severity, found.subject) == ("note", "machine.limits")
    assert "vm.max_map_count can not be read" in found.seen


def test_a_full_core_beside_an_idle_one_is_found(kernel: Kernel) -> None:
    def half_a_second(first: int) -> None:
        busy, idle = 100 + first, 950 - first
        kernel.write("proc/stat", f"cpu0 {busy} 0 0 {idle} 0 0 0 0\ncpu1 100 0 0 950 0 0 0 0\n")

    assert list(machine.core_load(kernel.roots, wait=lambda: half_a_second(20))) == []
    kernel.write("proc/stat", "cpu0 100 0 0 900 0 0 0 0\ncpu1 100 0 0 900 0 0 0 0\n")
    [found] = machine.core_load(kernel.roots, wait=lambda: half_a_second(50))
    assert (found.subject, found.seen[:18]) == ("machine.core_load", "cores 0 are full (")
    assert "mpstat -P ALL 1" in found.remedy


def test_a_machine_that_shows_no_governor_says_so(kernel: Kernel) -> None:
    for core in (0, 1):
        kernel.drop(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor")
    [found] = machine.governor(kernel.roots)
    assert (found.severity, found.seen[:12]) == ("note", "not checked:")


@pytest.mark.parametrize("name", ["jemalloc", "tcmalloc"])
def test_an_allocator_is_missed_where_a_pool_asks_for_it(name: Preloaded) -> None:
    settings = load_settings(
        overrides={"pools.shared.allocator": "glibc", "pools.critical.allocator": name}
    )
    [found] = machine.allocator(settings, installed=lambda _: None)
    assert found.seen == f"{name} is not there; critical would run on glibc"
    assert how_to_install(name) in found.remedy
    assert list(machine.allocator(settings, installed=lambda _: Path("there.so"))) == []
    both = {"pools.shared.allocator": "glibc", "pools.critical.allocator": "glibc"}
    assert list(machine.allocator(load_settings(overrides=both), installed=lambda _: None)) == []
