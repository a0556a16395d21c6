"""How busy each core is, from two looks at /proc/stat, and why some are full while others idle.

A look reads the times of all cores and processes (a few ms); what is between two of them is pure.
Half a second between them is the least: the kernel counts in ticks of 10 ms.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentq.errors import PlatformUnsupported
from agentq.host.finding import Finding
from agentq.host.topology import Topology, format_cores, parse_cores

FULL, IDLE = 0.9, 0.2
SHOWS = "mpstat -P ALL 1"

_BUSY = 0.1
"""A process that uses less of a core than this is no cause."""
_INTERRUPTS = 0.3


@dataclass(frozen=True, kw_only=True)
class Ticks:
    """What a core has done since the machine's start, in ticks."""

    busy: int
    interrupts: int
    """Part of busy."""
    total: int


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a process has used since its start, and where it may run."""

    name: str
    ticks: int
    cores: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at all cores and processes."""

    at: float
    """On the monotonic clock, in seconds."""
    cores: Mapping[int, Ticks]
    processes: Mapping[int, Ran]
    """By process id."""


@dataclass(frozen=True, kw_only=True)
class CoreLoad:
    """What a core did between two looks; shares of the time, 0-1."""

    core: int
    busy: float
    interrupts: float


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What a process used between two looks."""

    pid: int
    name: str
    share: float
    """In cores: 1 is all of one."""
    cores: tuple[int, ...]
    """Where it may run."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The time between two looks."""

    cores: tuple[CoreLoad, ...]
    """By number."""
    runners: tuple[Runner, ...]
    """Processes that used a tenth of a core or more, the busiest first."""


def look(*, root: Path = Path("/")) -> Look:
    """Look once, below *root* (``proc``).

    Raises:
        PlatformUnsupported: there is no /proc/stat.
    """
    proc = root / "proc"
    try:
        text = (proc / "stat").read_text(encoding="ascii")
    except OSError as error:
        raise PlatformUnsupported(f"the load of cores comes from /proc/stat: {error}") from error
    rows = re.findall(r"^cpu(\d+) (.*)", text, re.MULTILINE)
    processes = {}
    for folder in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            processes[int(folder.name)] = _ran(folder)
    return Look(
        at=time.monotonic(),
        cores={int(core): _ticks(row) for core, row in rows},
        processes=processes,
    )


def between(before: Look, after: Look) -> Load:
    """Return what happened between two looks; cores that came or went meanwhile are left out."""
    cores = []
    for core in sorted(before.cores.keys() & after.cores.keys()):
        first, last = before.cores[core], after.cores[core]
        total = max(1, last.total - first.total)
        cores.append(
            CoreLoad(
                core=core,
                busy=(last.busy - first.busy) / total,
                interrupts=(last.interrupts - first.interrupts) / total,
            )
        )
    ticks = max(0.01, after.at - before.at) * os.sysconf("SC_CLK_TCK")
    began = {pid: ran.ticks for pid, ran in before.processes.items()}
    runners = [
        Runner(
            pid=pid, name=ran.name, cores=ran.cores, share=(ran.ticks - began.get(pid, 0)) / ticks
        )
        for pid, ran in after.processes.items()
    ]
    busy = [runner for runner in runners if runner.share >= _BUSY]
    return Load(cores=tuple(cores), runners=tuple(sorted(busy, key=lambda one: -one.share)))


def unbalanced(load: Load, topology: Topology) -> Finding | None:
    """Return what to say of full cores beside idle ones; None where there are not both.

    Only cores of *topology* count: others are not this process' to use.
    """
    usable = [core for core in load.cores if core.core in topology.allowed]
    full = [core for core in usable if core.busy >= FULL]
    idle = [core.core for core in usable if core.busy <= IDLE]
    if not full or not idle:
        return None
    names = format_cores(core.core for core in full)
    why, remedy = _cause(full, idle, load.runners, topology)
    return Finding(
        severity="warning",
        subject="core load",
        seen=f"cores {names} are full (over {FULL:.0%}) beside idle cores {format_cores(idle)}",
        why=why,
        remedy=f"{remedy}; {SHOWS} shows it",
    )


def _cause(
    full: Sequence[CoreLoad], idle: Sequence[int], runners: Sequence[Runner], topology: Topology
) -> tuple[str, str]:
    """Return the likely cause and what to do about it."""
    numbers = {core.core for core in full}
    if loud := [core.core for core in full if core.interrupts >= _INTERRUPTS]:
        return (
            f"interrupts: cores {format_cores(loud)} spend over {_INTERRUPTS:.0%} on them",
            "spread them: irqbalance, or /proc/irq/*/smp_affinity_list",
        )
    bound = [runner for runner in runners if numbers.issuperset(runner.cores)]
    if len(bound) > len(numbers):
        them = ", ".join(f"{runner.name} ({runner.pid})" for runner in bound)
        return (
            f"affinity: {them} may run nowhere else",
            f"place them anew (agentq plan), or taskset -apc {format_cores(idle)} PID",
        )
    nodes = {topology.node_of[core] for core in numbers}
    if len(numbers) > 1 and len(nodes) == 1 and nodes.isdisjoint(topology.node_of[c] for c in idle):
        return (
            f"NUMA: the full ones are those of node {nodes.pop()}, the idle ones of others",
            "more processes on the other nodes: pools.<name>.processes, agentq plan",
        )
    if runners and runners[0].share >= FULL:
        hot = runners[0]
        return (
            f"one hot process: {hot.name} ({hot.pid}) uses {hot.share:.0%} of a core",
            "more worker processes (pools.<name>.processes), or its work in steps of kind='cpu'",
        )
    return "no one process explains it", "see which threads run there: top -H, then f, P"


def _ticks(row: str) -> Ticks:
    """Return the times of one line; guests' are in user and nice already."""
    user, nice, system, idle, waits, hard, soft, steal = map(int, [*row.split(), *"0" * 8][:8])
    busy = user + nice + system + hard + soft + steal
    return Ticks(busy=busy, interrupts=hard + soft, total=busy + idle + waits)


def _ran(folder: Path) -> Ran:
    name, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
    fields = rest.split()
    allowed = re.search(
        r"^Cpus_allowed_list:\s*(\S+)",
        (folder / "status").read_text(errors="replace"),
        re.MULTILINE,
    )
    return Ran(
        name=name.partition("(")[2],
        ticks=int(fields[11]) + int(fields[12]),
        cores=parse_cores(allowed[1]) if allowed else (),
    )
