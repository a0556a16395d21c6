"""On which node a process' memory is: the policy set and read by the system call, no library.

A policy is inherited over fork and exec and holds for what is touched afterwards; what is there
already stays where it is. So it is set first of all, and what came of it is read from numa_maps.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentq.errors import PlatformUnsupported, SettingsError
from agentq.host.finding import Finding
from agentq.host.topology import read_topology

Mode = Literal["default", "preferred", "bind", "interleave", "local"]

REMOTE = 0.1
"""The share of pages on other nodes from which it is a finding."""

_MODES: Mapping[Mode, int] = {
    "default": 0, "preferred": 1, "bind": 2, "interleave": 3, "local": 4,
}  # fmt: skip
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
"""Machine -> numbers of set_mempolicy and get_mempolicy, from the kernel's unistd.h of each."""
_FLAGS = 0xE000  # MPOL_F_STATIC_NODES and the like, which get_mempolicy returns with the mode
_MOST_NODES = 1024
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Where a process' own (anonymous) memory is; bytes by node."""

    by_node: Mapping[int, int]

    def remote_share(self, node: int) -> float:
        """Return the part, 0-1, that is on other nodes than *node*."""
        total = sum(self.by_node.values())
        return 1 - self.by_node.get(node, 0) / total if total else 0.0

    def finding(self, node: int, *, process: str, pid: int) -> Finding | None:
        """Return what to say where over 10 % of *process* is on other nodes than *node*."""
        share = self.remote_share(node)
        if share <= REMOTE:
            return None
        return Finding(
            severity="warning",
            subject="remote memory",
            seen=f"{share:.0%} of the memory of {process} (process {pid}) is not on node {node}, "
            "where its cores are",
            why="every access to it crosses the interconnect",
            remedy=f"restart {process}: memory that was touched before the policy was set stays "
            f"where it is; or migratepages {pid} all {node}",
        )


def set_policy(mode: Mode, nodes: Iterable[int] = ()) -> None:
    """Let this thread, and what it starts, take memory from *nodes*; nothing is moved.

    bind takes from them only, preferred from others once they are full, interleave in turn.

    Raises:
        SettingsError: a node is not there or has no memory.
        PlatformUnsupported: this is no Linux, or a machine whose call numbers are not known.
    """
    chosen = sorted(set(nodes))
    words = max(chosen, default=0) // _WORD + 1
    mask = (ctypes.c_ulong * words)()
    for node in chosen:
        mask[node // _WORD] |= 1 << node % _WORD
    # The kernel takes one bit less than it is told.
    bits = ctypes.c_ulong(words * _WORD + 1 if chosen else 0)
    error = _call(0, ctypes.c_int(_MODES[mode]), mask if chosen else None, bits)
    if error:
        named = ",".join(map(str, chosen)) or "-"
        raise SettingsError(
            f"memory policy {mode} on node {named}: {os.strerror(error)}; "
            "numactl --hardware lists the nodes that have memory"
        )


@contextmanager
def starting_on(node: int | None) -> Iterator[None]:
    """Let what is started meanwhile take memory of *node*; None: of any."""
    if node is None:
        yield
        return
    before, nodes = policy()
    set_policy("bind", [node])
    try:
        yield
    finally:
        set_policy(before, nodes)


def policy() -> tuple[Mode, tuple[int, ...]]:
    """Return the policy of this thread and its nodes.

    Raises:
        PlatformUnsupported: this is no Linux, or a machine whose call numbers are not known.
    """
    mode = ctypes.c_int()
    mask = (ctypes.c_ulong * (_MOST_NODES // _WORD))()
    bits, zero = ctypes.c_ulong(_MOST_NODES), ctypes.c_ulong(0)
    if error := _call(1, ctypes.byref(mode), mask, bits, None, zero):
        raise PlatformUnsupported(f"get_mempolicy: {os.strerror(error)}")
    names = {number: name for name, number in _MODES.items()}
    nodes = (n for n in range(_MOST_NODES) if mask[n // _WORD] >> n % _WORD & 1)
    return names[mode.value & ~_FLAGS], tuple(nodes)


def pages(pid: int, *, root: Path = Path("/")) -> Pages:
    """Return on which nodes the own memory of process *pid* is, read below *root*.

    Files are left out: the page cache has one copy for all, wherever it was read first. Walks the
    process' page tables (some ms for each GB): look now and then, do not poll.

    Raises:
        ProcessLookupError: there is no such process.
        PermissionError: it belongs to another user.
        PlatformUnsupported: the kernel knows no nodes.
    """
    folder = root / "proc" / str(pid)
    try:
        text = (folder / "numa_maps").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        if folder.exists():
            raise PlatformUnsupported("this kernel knows no memory nodes (CONFIG_NUMA)") from error
        raise ProcessLookupError(f"no process {pid}") from error
    by_node: Counter[int] = Counter()
    for line in text.splitlines():
        size = re.search(r" kernelpagesize_kB=(\d+)", line)
        if size and " file=" not in line:
            for node, count in re.findall(r" N(\d+)=(\d+)", line):
                by_node[int(node)] += int(count) * int(size[1]) * 1024
    return Pages(by_node=dict(by_node))


def at_home(pid: int, cores: Iterable[int], *, root: Path = Path("/")) -> tuple[int, Pages] | None:
    """Return the node on which the memory of *pid*, which runs on *cores*, shall be; where it is.

    None: there is one node with memory, or the cores are of several. Raises as `pages`.
    """
    home = read_topology(root=root / "sys", allowed=cores).home
    return None if home is None else (home, pages(pid, root=root))


def _call(which: int, *arguments: object) -> int:
    """Make a system call; return its errno, 0 where it worked."""
    numbers = _CALLS.get(platform.machine())
    if numbers is None or platform.system() != "Linux":
        raise PlatformUnsupported(
            f"memory policies are not known on {platform.system()} {platform.machine()}; "
            "start the process with numactl --membind"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    failed = libc.syscall(ctypes.c_long(numbers[which]), *arguments)
    return ctypes.get_errno() if failed else 0
