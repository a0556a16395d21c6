"""Peak memory of a process tree, and its end: all by process id, from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from agentq.host.process import descendants, pss_bytes

_PROC = Path("/proc")
_DYING_LIMIT_S = 5.0  # killed processes free their memory first: 64 of them take a moment


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process tree in MB (10^6 bytes).

    Attributes:
        processes: how many there are.
        peak_rss: the sum of each process' peak; pages shared between processes count once for each.
        pss: what they hold now, shared pages divided among those who share them.
    """

    processes: int
    peak_rss: float
    pss: float


def memory(root: int) -> Memory:
    """Return what *root* and its descendants have held at most and hold now."""
    rss_kb = pss = 0
    tree = (root, *descendants(root))
    for process in tree:
        with contextlib.suppress(OSError):  # ended since it was listed
            rss_kb += _kilobytes(process, "status", "VmHWM:")
            pss += pss_bytes(process)
    return Memory(len(tree), rss_kb * 1.024e-3, pss / 1e6)


def end_tree(root: int) -> None:
    """Kill *root* and its descendants and wait until they are gone; the caller reaps *root*.

    The root is stopped first, so that a pool cannot replace a child between listing and killing.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGSTOP)
    tree = (root, *descendants(root))
    for process in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    end = time.monotonic() + _DYING_LIMIT_S
    while any(map(_runs, tree)) and time.monotonic() < end:
        time.sleep(0.005)


def _runs(process: int) -> bool:
    try:
        stat = (_PROC / str(process) / "stat").read_text()
    except OSError:
        return False
    return not stat.rpartition(")")[2].startswith(" Z")


def _kilobytes(process: int, file: str, field: str) -> int:
    text = (_PROC / str(process) / file).read_text()
    _, found, rest = text.partition(f"\n{field}")
    return int(rest.split(None, 1)[0]) if found else 0
