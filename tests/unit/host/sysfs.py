"""Writes the part of sysfs that tells a machine's topology."""

from __future__ import annotations

from pathlib import Path

from agentq.host.topology import format_cores


def write_machine(root: Path, *, nodes: int, cores: int, smt: int = 1) -> Path:
    """Write *nodes* x *cores* physical cores of *smt* threads, numbered as Linux does; return it.

    The first threads of all cores come first: the siblings of core c are c + nodes * cores and on.
    """
    physical = nodes * cores
    threads = range(physical * smt)
    _write(root, "cpu/online", format_cores(threads))
    for cpu in threads:
        siblings = range(cpu % physical, physical * smt, physical)
        _write(root, f"cpu/cpu{cpu}/topology/thread_siblings_list", format_cores(siblings))
    for node in range(nodes):
        local = [cpu for cpu in threads if cpu % physical // cores == node]
        _write(root, f"node/node{node}/cpulist", format_cores(local))
    return root


def _write(root: Path, name: str, text: str) -> None:
    path = root / "devices/system" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="ascii")
