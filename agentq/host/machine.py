"""Everything of a machine that a plan depends on, read once: cores, nodes, quota, memory, limits.

All of it comes from below one root, so that a written tree stands for any machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentq.host.cgroup import read_cgroup
from agentq.host.limits import Limits, read_limits
from agentq.host.topology import Topology, allowed_cores, read_topology

ROOT = Path("/")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this process may use of the machine it is on."""

    topology: Topology
    quota: float | None
    """CPU time in cores; None: all of the cores' time."""
    memory_bytes: int
    """The machine's, or the control group's limit where that is less."""
    limits: Limits

    @property
    def physical_cores(self) -> int:
        """Physical cores that can really be kept busy: within the quota, at least one."""
        cores = len(self.topology.cores)
        return cores if self.quota is None else max(1, min(cores, int(self.quota)))


def read_machine(*, root: Path = ROOT, allowed: Iterable[int] | None = None) -> Machine:
    """Return what may be used, read below *root* (``sys``, ``proc``).

    Args:
        root: where both are, or a tree like it.
        allowed: logical core numbers that this process' cpuset is narrowed to; by default this
            thread's own at the real root, else none.
    """
    cgroup = read_cgroup(root=root)
    if allowed is None and root == ROOT:
        allowed = allowed_cores()
    usable = cgroup.cores if allowed is None else _within(allowed, cgroup.cores)
    if usable is None:
        usable = range(1 << 16)  # what is online
    total = _memory_total(root)
    limit = cgroup.memory_bytes
    return Machine(
        topology=read_topology(root=root / "sys", allowed=usable),
        quota=cgroup.quota,
        memory_bytes=total if limit is None else min(total, limit),
        limits=read_limits(root=root, cgroup=cgroup),
    )


def _within(allowed: Iterable[int], cores: tuple[int, ...] | None) -> Iterable[int]:
    return allowed if cores is None else set(allowed).intersection(cores)


def _memory_total(root: Path) -> int:
    """Return MemTotal: not the sum of the nodes', which the kernel may put on line one by one."""
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"MemTotal:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0
