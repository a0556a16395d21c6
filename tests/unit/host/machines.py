"""Writes what a plan reads of a machine: sys and proc below one folder, for machines of any shape."""

from __future__ import annotations

from pathlib import Path

from agentq.host.machine import Machine, read_machine
from agentq.host.topology import format_cores
from tests.unit.host.sysfs import write_machine

GB = 2**30

_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             {processes:<20} {processes:<20} processes
Max open files            1024                 {files:<20} files
Max locked memory         8388608              8388608              bytes
"""


def write(root: Path, name: str, text: object) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="ascii")


def write_host(  # noqa: PLR0913 -- a machine has many sides
    root: Path,
    *,
    nodes: int = 1,
    cores: int = 2,
    smt: int = 1,
    memory: int = 16 * GB,
    files: int | str = 524_288,
    processes: int | str = "unlimited",
) -> Path:
    """Write *nodes* x *cores* physical cores of *smt* threads, *memory* bytes in all; return it."""
    write_machine(root / "sys", nodes=nodes, cores=cores, smt=smt)
    folder = "sys/devices/system/node"
    write(root, f"{folder}/online", format_cores(range(nodes)))
    for node in range(nodes):
        row = " ".join("10" if other == node else "21" for other in range(nodes))
        write_node(root, node, memory=memory // nodes, distances=row)
    write(root, "proc/meminfo", f"MemTotal:       {memory // 1024} kB")
    write(root, "proc/self/cgroup", "0::/")
    write(root, "proc/self/limits", _LIMITS.format(files=files, processes=processes).rstrip())
    write(root, "proc/sys/kernel/threads-max", 1_000_000)
    write(root, "proc/sys/kernel/pid_max", 4_194_304)
    write(root, "proc/sys/vm/max_map_count", 65_530)
    write(root, "proc/sys/net/core/somaxconn", 4_096)
    write(root, "proc/loadavg", "0.00 0.00 0.00 1/300 999")
    write(root, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory pids")
    return root


def write_node(root: Path, node: int, *, memory: int, distances: str) -> None:
    folder = f"sys/devices/system/node/node{node}"
    write(root, f"{folder}/meminfo", f"Node {node} MemTotal:       {memory // 1024} kB")
    write(root, f"{folder}/distance", distances)


def written(root: Path, **shape: int) -> Machine:
    """Return what is read of a written machine of that shape."""
    return read_machine(root=write_host(root, **shape))
