"""What a process and its children use, from /proc: memory now, CPU since their start."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentq.errors import PlatformUnsupported

_PROC = Path("/proc")
_NO_PROC = "process figures come from /proc, which this system lacks"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Resources of a process and all its living descendants."""

    rss_bytes: int
    """Resident memory summed up; pages that processes share count once for each."""
    cpu_seconds: float
    """User and system time, descendants that have ended and were waited for included."""
    pids: tuple[int, ...]
    """The process first, then its descendants."""


def usage(pid: int | None = None) -> Usage:
    """Return what process *pid*, by default this one, and its descendants use.

    Reads every process' stat once (about 20 us each): sample it, do not poll it.

    Raises:
        ProcessLookupError: there is no such process.
        PlatformUnsupported: there is no /proc.
    """
    root = os.getpid() if pid is None else pid
    pids = (root, *descendants(root))
    rss, cpu = rss_bytes(root), cpu_seconds(root)
    for child in pids[1:]:
        with contextlib.suppress(ProcessLookupError):  # ended since it was listed
            cpu += cpu_seconds(child)
            rss += rss_bytes(child)
    return Usage(rss_bytes=rss, cpu_seconds=cpu, pids=pids)


def rss_bytes(pid: int) -> int:
    """Return the resident memory of one process, in bytes.

    Raises:
        ProcessLookupError: there is no such process.
        PlatformUnsupported: there is no /proc.
    """
    pages = int(_read(pid, "statm").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class OwnMemory:
    """This process' resident memory, by a file that stays open: there may be none left to open.

    As long as the process does: make one.
    """

    def __init__(self) -> None:
        """Open it.

        Raises:
            PlatformUnsupported: there is no /proc.
        """
        try:
            self._statm = os.open(_PROC / "self/statm", os.O_RDONLY)
        except FileNotFoundError as error:
            raise PlatformUnsupported(_NO_PROC) from error

    def rss_bytes(self) -> int:
        """Return it."""
        text = os.pread(self._statm, 100, 0)
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pss_bytes(pid: int) -> int:
    """Return a process' share of the resident memory, in bytes: of n users a page counts 1/n each.

    Where that may not be asked it is `rss_bytes`. Takes about a millisecond per 50 MB.

    Raises:
        ProcessLookupError: there is no such process.
        PlatformUnsupported: there is no /proc.
    """
    with contextlib.suppress(PermissionError):
        for line in _read(pid, "smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return rss_bytes(pid)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of one process and of its children that ended and were waited for.

    The kernel counts in ticks of 10 ms.

    Raises:
        ProcessLookupError: there is no such process.
        PlatformUnsupported: there is no /proc.
    """
    user, system, waited_user, waited_system = map(int, _stat(pid)[11:15])
    return (user + system + waited_user + waited_system) / os.sysconf("SC_CLK_TCK")


def began(pid: int) -> int | None:
    """Return when process *pid* began, in ticks since the machine did; None: it is none that lives.

    Ids are given out again: with this one process is told from another.
    """
    try:
        stat = _stat(pid)
    except (ProcessLookupError, PlatformUnsupported):
        return None
    return None if stat[0] in "ZX" else int(stat[19])


def descendants(pid: int) -> tuple[int, ...]:
    """Return the living children of *pid*, their children and so on, the nearest first.

    Raises:
        PlatformUnsupported: there is no /proc.
    """
    children = defaultdict(list)
    for other in _pids():
        with contextlib.suppress(ProcessLookupError):
            state, parent = _stat(other)[:2]
            if state != "Z":
                children[int(parent)].append(other)
    found = list(children[pid])
    for child in found:  # grows while it is walked
        found.extend(children[child])
    return tuple(found)


def _pids() -> Iterator[int]:
    if not (_PROC / "self").exists():
        raise PlatformUnsupported(_NO_PROC)
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _stat(pid: int) -> list[str]:
    """Return the fields of stat from the third (state) on; the second may contain anything."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        if not (_PROC / "self").exists():
            raise PlatformUnsupported(_NO_PROC) from error
        raise ProcessLookupError(f"no process {pid}") from error
