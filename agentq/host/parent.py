"""Ending together with the process that started this one, however that comes about."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when *parent*, which started it, ends.

    Linux only: elsewhere a parent that is killed leaves its children behind. The kernel watches the
    parent's *thread* that started this process, which therefore has to be its main one. Survives
    an exec.

    Raises:
        SystemExit: the parent has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the kernel was asked
        raise SystemExit(f"process {parent}, which started this one, has gone")
