"""The cores this process may use: which share a physical core, and which memory node they are on.

Read from sysfs, whose root is an argument, so that a written tree stands for any machine. A node
may have cores and memory, or one of them only; numbers have gaps; a kernel may know no nodes at
all: then all cores are on node 0, whose memory is not known.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentq.host.kernel_file import text_of

SYSFS = Path("/sys")


@dataclass(frozen=True, kw_only=True)
class Core:
    """One physical core: the logical cores on it that may be used, and its NUMA node."""

    node: int
    threads: tuple[int, ...]
    """Logical core numbers, ascending; more than one with SMT."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One NUMA node that is online, whether or not it has usable cores."""

    number: int
    memory_bytes: int
    """What the kernel has put on line so far, which can grow; 0: it has none."""
    distances: tuple[tuple[int, int], ...] = ()
    """(node, relative distance as the firmware states it), 10 being local."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The part of a machine that may be used, by node and then by number."""

    cores: tuple[Core, ...]
    memory: tuple[Node, ...] = ()
    """All nodes that are online, by number; none where the kernel knows no nodes."""

    @property
    def allowed(self) -> tuple[int, ...]:
        """Every usable logical core, ascending."""
        return tuple(sorted(thread for core in self.cores for thread in core.threads))

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that have a usable core."""
        return tuple(sorted({core.node for core in self.cores}))

    @cached_property
    def node_of(self) -> dict[int, int]:
        """Usable logical core -> its node."""
        return {thread: core.node for core in self.cores for thread in core.threads}

    @property
    def home(self) -> int | None:
        """The node whose memory its cores shall use; None: there is no choice, or they differ."""
        found = {self.memory_node(node) for node in self.nodes}
        return found.pop() if len(found) == 1 else None

    def distance(self, one: int, other: int) -> int:
        """Return how far the memory of node *other* is from cores of node *one*; 10 is local."""
        known = {node.number: dict(node.distances) for node in self.memory}
        return known.get(one, {}).get(other, 10 if one == other else 20)

    def memory_node(self, node: int) -> int | None:
        """Return the node whose memory the cores of *node* shall use: itself, else the nearest.

        None where there is no choice.
        """
        having = [known.number for known in self.memory if known.memory_bytes]
        if len(having) < 2:  # noqa: PLR2004 -- a choice
            return None
        return min(having, key=lambda other: (self.distance(node, other), other))


def allowed_cores() -> tuple[int, ...]:
    """Return the logical cores this thread may run on; cpusets and containers are already in it."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def read_topology(*, root: Path = SYSFS, allowed: Iterable[int] | None = None) -> Topology:
    """Return the usable cores below *root*: those online and in *allowed*; these, if none is both.

    Args:
        root: where sysfs is mounted, or a tree like it.
        allowed: logical core numbers; by default this thread's own (`allowed_cores`).
    """
    usable = set(allowed_cores() if allowed is None else allowed)
    online = text_of(root / "devices/system/cpu/online")
    # lxcfs shows a container 0-1 here, for as many as its quota is, whichever cores it has.
    usable = usable.intersection(parse_cores(online)) or usable
    folder = root / "devices/system/node"
    nodes = _nodes(folder)
    groups: dict[tuple[int, ...], int] = {}
    for cpu in sorted(usable):
        siblings = text_of(root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        threads = usable.intersection(parse_cores(siblings)) | {cpu}
        groups[tuple(sorted(threads))] = nodes.get(cpu, 0)
    cores = [Core(node=node, threads=threads) for threads, node in groups.items()]
    cores.sort(key=lambda core: (core.node, core.threads))
    return Topology(cores=tuple(cores), memory=_memory(folder))


def parse_cores(text: str) -> tuple[int, ...]:
    """Return the numbers of a kernel list such as ``0-3,8``; an empty text has none."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def format_cores(cores: Iterable[int]) -> str:
    """Return the shortest list that `parse_cores` reads back, e.g. ``0-3,8``."""
    ranges: list[list[int]] = []
    for core in sorted(set(cores)):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)


def _nodes(folder: Path) -> dict[int, int]:
    """Return logical core -> node; empty where the kernel knows no nodes (then all are on 0)."""
    nodes = {}
    for lists in folder.glob("node[0-9]*/cpulist"):
        node = int(lists.parent.name.removeprefix("node"))
        nodes.update(
            dict.fromkeys(parse_cores(text_of(lists)), node)
        )  # a memory-only node has none
    return nodes


def _memory(folder: Path) -> tuple[Node, ...]:
    listed = text_of(folder / "online")
    online = set(parse_cores(listed)) if listed else None
    numbers = sorted(int(path.name.removeprefix("node")) for path in folder.glob("node[0-9]*"))
    numbers = [number for number in numbers if online is None or number in online]
    return tuple(_node(folder / f"node{number}", number, numbers) for number in numbers)


def _node(folder: Path, number: int, online: Sequence[int]) -> Node:
    total = re.search(r"MemTotal:\s+(\d+) kB", text_of(folder / "meminfo"))
    row = [int(word) for word in text_of(folder / "distance").split()]  # one for each online node
    return Node(
        number=number,
        memory_bytes=int(total[1]) * 1024 if total else 0,
        distances=tuple(zip(online, row, strict=False)),
    )
