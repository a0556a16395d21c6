"""How a process stands beside others: for the CPU (nice, slice), and when memory runs out.

A slice says how soon and not how much: a process that wakes up takes the core at once from one
whose slice is longer, instead of at the next clock tick (4 ms), and its share stays what it was.
Measured on 2 cores, beside a worker that never sleeps: nine in ten of the server's wake-ups waited
up to 1.2 ms for a core, with a short slice 0.05 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from pathlib import Path

_OOM_SCORE = Path("/proc/self/oom_score_adj")
_AUTOGROUP = Path("/proc/self/autogroup")

_SLICE_NS = 100_000
"""The shortest that the kernel takes."""

_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Machine -> numbers of sched_setattr and sched_getattr, from the kernel's unistd.h of each."""

_RESET_ON_FORK = 1

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""The kernel's sched_attr: size, policy, flags, nice, priority, runtime, deadline, period."""


def set_nice(value: int) -> str:
    """Give this process the nice value *value* as far as it is allowed; return what holds.

    Where the kernel schedules sessions first and processes within each (autogroup, sched(7)), the
    session that this process leads gets it too: nothing else would change beside other sessions.
    """
    with contextlib.suppress(PermissionError):  # lower than it was needs a right
        os.setpriority(os.PRIO_PROCESS, 0, value)
        if os.getsid(0) == os.getpid():
            with contextlib.suppress(OSError):  # off, or this kernel has none
                _AUTOGROUP.write_text(f"{value}\n", encoding="ascii")
    return _said("nice", value, os.getpriority(os.PRIO_PROCESS, 0))


def shorten_slice(*, pid: int | None = None, forked: bool = True) -> str:
    """Let process *pid*, by default this one, have a core soon; *forked*: what it starts too.

    Returns what holds: empty where the kernel has no slices of a process' own (before Linux 6.12).
    """
    numbers = _CALLS.get(platform.machine())
    if numbers is None or platform.system() != "Linux":
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    was = ctypes.create_string_buffer(_ATTRIBUTES.size)
    pid = os.getpid() if pid is None else pid
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        number = int(thread.name)
        if libc.syscall(numbers[1], number, was, _ATTRIBUTES.size, 0):
            continue  # it has ended
        size, policy, flags, nice, rank, _, *rest = _ATTRIBUTES.unpack(was.raw)
        flags |= 0 if forked else _RESET_ON_FORK
        wanted = _ATTRIBUTES.pack(size, policy, flags, nice, rank, _SLICE_NS, *rest)
        libc.syscall(numbers[0], number, wanted, 0)
    failed = libc.syscall(numbers[1], pid, was, _ATTRIBUTES.size, 0)
    holds = 0 if failed else _ATTRIBUTES.unpack(was.raw)[5]
    return f"slice {holds / 1e6:g} ms" if holds == _SLICE_NS else ""


def set_oom_score(value: int) -> str:
    """Give this process the score *value* as far as it is allowed; return what holds."""
    try:
        with contextlib.suppress(PermissionError):
            _OOM_SCORE.write_text(f"{value}\n", encoding="ascii")
        return _said("OOM score", value, int(_OOM_SCORE.read_text(encoding="ascii")))
    except FileNotFoundError:
        return "OOM score not set (no /proc)"


def _said(name: str, wanted: int, holds: int) -> str:
    return f"{name} {holds}" + ("" if holds == wanted else f" (asked for {wanted})")
