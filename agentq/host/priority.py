"""How a process stands beside others: for the CPU (nice), and when memory runs out (OOM score)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_OOM_SCORE = Path("/proc/self/oom_score_adj")


def set_nice(value: int) -> str:
    """Give this process the nice value *value* as far as it is allowed; return what holds."""
    with contextlib.suppress(PermissionError):  # lower than it was needs a right
        os.setpriority(os.PRIO_PROCESS, 0, value)
    return _said("nice", value, os.getpriority(os.PRIO_PROCESS, 0))


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
