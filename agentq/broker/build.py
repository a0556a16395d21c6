"""What tells a process from the others that work in the same cell, and its build from theirs."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from agentq.store import library


@cache
def build() -> str:
    """Return e.g. ``0.1.0 (functions 3, 5f0c1d2e3a4b5c6d)``."""
    from agentq import __version__  # noqa: PLC0415 -- it imports this package

    return f"{__version__} (functions {library.REVISION}, {library.digest()})"


def identity() -> dict[str, Any]:
    """Return what every process says of itself with its lease: host, process id and build."""
    return {"host": os.uname().nodename, "pid": os.getpid(), "build": build()}
