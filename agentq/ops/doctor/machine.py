"""The machine: what its plan lacks, kernel settings, clock rate, load of cores, allocator.

The limits are those of a process started from this shell; of workers that run, `workers` asks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from agentq.host.core_load import between, look, unbalanced
from agentq.host.limits import FILES
from agentq.host.plan import Plan
from agentq.host.preload import Preloaded, find_library, how_to_install
from agentq.host.topology import read_topology
from agentq.ops.deploy.render import SYSCTL
from agentq.ops.doctor.finding import Finding, of_machine, unchecked, warning
from agentq.ops.doctor.roots import Roots

if TYPE_CHECKING:
    from agentq.settings import Settings

FULL = 0.8
"""From this share on a limit is a finding before it is reached."""

LOOK_S = 0.5
"""How long the load of cores is looked at: the kernel counts in ticks of 10 ms."""

_SEATS = "etc/systemd/system/agentq-worker@*.service.d/20-seat.conf"
_IN_UNITS = (
    "the installed units have {} already: this is the limit of this shell, or of the container "
    "that all is in, which its host raises"
)
_STEADY = {"performance", "schedutil"}
_EVERYWHERE = {"threads of the machine", "memory mappings", "waiting connections"}
"""Limits that every kernel has: without a value they could not be read."""


def plan(found: Plan, roots: Roots) -> Iterator[Finding]:
    """Find what stands against the plan, limits that are too low for it among that."""
    files = next((f"LimitNOFILE={one.need}" for one in found.needs if one.name == FILES), "")
    for one in found.findings:
        has_it = one.subject == FILES and _installed(roots, _SEATS, files)
        remedy = _IN_UNITS.format(files) if has_it else one.remedy
        yield of_machine(replace(one, remedy=remedy))
    for need in found.needs:
        if need.value is None and need.name in _EVERYWHERE:
            what = f"{need.name}: {need.source} can not be read"
            yield unchecked("machine.limits", what, remedy="agentq doctor outside the container")


def open_files(roots: Roots) -> Iterator[Finding]:
    """Find a machine that is short of open files, whoever has them."""
    used, _, most = (roots.proc / "sys/fs/file-nr").read_text(encoding="ascii").split()
    if int(used) > FULL * int(most):
        yield warning(
            "machine.open_files",
            f"{int(used):,} of the machine's {int(most):,} files are open",
            why="at the limit every process fails with 'Too many open files in system'",
            remedy=f"sysctl -w fs.file-max={2 * int(most)}",
        )


def core_load(
    roots: Roots, *, wait: Callable[[], object] = lambda: time.sleep(LOOK_S)
) -> Iterator[Finding]:
    """Find full cores beside idle ones, by what happens during *wait*."""
    before = look(root=roots.root)
    wait()
    found = unbalanced(between(before, look(root=roots.root)), read_topology(root=roots.sys))
    if found is not None:
        yield of_machine(found)


def overcommit(roots: Roots) -> Iterator[Finding]:
    """Find a kernel that may refuse the server's fork; for the machine that the server is on."""
    if (mode := roots.number("sys/vm/overcommit_memory")) != 1:
        line = "vm.overcommit_memory=1"
        yield warning(
            "machine.overcommit",
            f"vm.overcommit_memory is {mode}",
            why="to rewrite its append-only file the server forks; with little memory free the "
            "kernel may refuse that, and the file grows until the disk is full",
            remedy=f"{line} is in /{SYSCTL} already: sysctl --system applies it, or the next "
            "boot; a container is refused it, and its host decides"
            if _installed(roots, SYSCTL, line)
            else f"echo {line} > /etc/sysctl.d/60-redis.conf && sysctl --system",
        )


def huge_pages(roots: Roots) -> Iterator[Finding]:
    """Find large pages forced on everybody; for the machine that the server is on."""
    path = roots.sys / "kernel/mm/transparent_hugepage/enabled"
    if "[always]" in path.read_text(encoding="ascii"):
        yield warning(
            "machine.huge_pages",
            "transparent huge pages are always on",
            why="after the server's fork each write copies 2 MB instead of 4 KB: pauses, and twice "
            "the memory",
            remedy="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


def governor(roots: Roots) -> Iterator[Finding]:
    """Find cores that are clocked down between steps."""
    folder = roots.sys / "devices/system/cpu"
    found = Counter(
        path.read_text(encoding="ascii").strip()
        for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor")
    )
    if not found:
        yield unchecked(
            "machine.governor", "no clock governor is visible here (a virtual machine has none)",
            remedy="on the host: cpupower frequency-info",
        )  # fmt: skip
    for name, count in found.items():
        if name not in _STEADY:
            yield warning(
                "machine.governor",
                f"{count} cores are clocked by governor {name!r}",
                why="steps come in bursts of a millisecond: a core that has slowed down in between "
                "answers late",
                remedy="cpupower frequency-set -g performance",
            )


def allocator(
    settings: Settings, *, installed: Callable[[Preloaded], Path | None] = find_library
) -> Iterator[Finding]:
    """Find a machine without the allocator that its pools ask for."""
    for name in get_args(Preloaded):
        wanting = [pool for pool, one in settings.pools.items() if one.allocator == name]
        if wanting and installed(name) is None:
            yield warning(
                "machine.allocator",
                f"{name} is not there; {', '.join(sorted(wanting))} would run on glibc",
                why="glibc keeps what a burst took: a worker stays large (`agentq bench memory`)",
                remedy=f'{how_to_install(name)}; or allocator = "glibc"',
            )


def _installed(roots: Roots, files: str, line: str) -> bool:
    """Whether one of those *files* that `agentq deploy install` writes has *line*."""
    texts = (path.read_text(encoding="utf-8") for path in roots.root.glob(files))
    return any(line in text.replace(" ", "").splitlines() for text in texts)
