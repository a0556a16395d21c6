"""Steps and warm functions that tell where they ran, and a command that stops Celery's loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

from celery.worker.control import control_command

from agentq import AgentQ
from tests.support.ledger import VARIABLE, note

aq = AgentQ("supervised")
app = aq.celery

warmed: list[str] = []


@aq.warm
async def connects() -> None:
    await asyncio.sleep(0.2)
    warmed.append("coroutine")
    note("warm", "coroutine", os.getpid(), threading.get_ident())


@aq.warm(kind="cpu")
def imports() -> None:
    warmed.append("function")
    note("warm", "function", os.getpid(), 0)


@control_command(args=[("seconds", float)])
def stand_still(_: Any, seconds: float) -> None:
    note("still")
    time.sleep(seconds)


def release_file() -> Path:
    """Where it is, the steps let go."""
    return Path(os.environ[VARIABLE]).with_name("release")


@aq.step
def hold(megabytes: int) -> list[str]:
    note("holds", os.getpid())
    held = bytearray(os.urandom(1)) * (megabytes << 20)
    while held and not release_file().exists():
        time.sleep(0.05)
    return warmed


@aq.step
def small(_: int) -> int:
    note("small")
    return os.getpid()


holding = aq.flow("hold", hold)
smalls = aq.flow("small", small)
