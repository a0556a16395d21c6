"""Pinning a process to cores, and reading back what the kernel made of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentq.errors import SettingsError
from agentq.host.process import descendants
from agentq.host.topology import allowed_cores, format_cores


@dataclass(frozen=True, kw_only=True)
class Affinity:
    """What was asked for and what holds; they differ where a cpuset is narrower."""

    requested: tuple[int, ...]
    effective: tuple[int, ...]

    def __str__(self) -> str:
        """Return one line for people, e.g. ``cores 2-3`` or ``cores 2 (asked for 2-3)``."""
        if sys.platform != "linux":
            return f"cores not pinned ({sys.platform} has no means to)"
        asked = format_cores(self.requested)
        differs = "" if self.effective == self.requested else f" (asked for {asked})"
        noun = "core" if len(self.effective) == 1 else "cores"
        return f"{noun} {format_cores(self.effective)}{differs}"


def pin(cores: Iterable[int], *, pid: int | None = None) -> Affinity:
    """Keep every thread of process *pid*, by default this one, on *cores*; later ones inherit it.

    Where the platform cannot pin nothing is done, and the result says so.

    Raises:
        SettingsError: none of the cores may be used.
        PermissionError: the process belongs to another user.
        ProcessLookupError: there is no such process.
    """
    wanted = tuple(sorted(set(cores)))
    if sys.platform == "linux":
        pid = os.getpid() if pid is None else pid
        _set(pid, wanted)  # first, so that threads born meanwhile inherit it
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                _set(int(thread.name), wanted)
    return Affinity(requested=wanted, effective=effective(pid=pid))


def move(cores: Iterable[int]) -> None:
    """Keep this process, all its threads and descendants on *cores*, wherever they were kept.

    Raises:
        SettingsError: none of the cores may be used.
    """
    wanted = tuple(cores)
    pin(wanted)
    for child in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            pin(wanted, pid=child)


def effective(*, pid: int | None = None) -> tuple[int, ...]:
    """Return the logical cores that process *pid*, by default this one, may run on, ascending."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(os.getpid() if pid is None else pid)))
    return allowed_cores()


def _set(thread: int, cores: tuple[int, ...]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except (OSError, OverflowError) as error:
        if isinstance(error, PermissionError | ProcessLookupError):
            raise
        raise SettingsError(
            f"cores {format_cores(cores) or '(none)'} cannot be used by this process; "
            f"it may use {format_cores(allowed_cores())}"
        ) from error
