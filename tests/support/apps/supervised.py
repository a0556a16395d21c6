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


def beside_the_ledger(name: str) -> Path:
    """Return a file that tests make: `connected` to end the warm-up, `release` to end steps."""
    return Path(os.environ[VARIABLE]).with_name(name)


@aq.warm
async def connects() -> None:
    note("warming")
    while not beside_the_ledger("connected").exists():  # noqa: ASYNC110 -- the test makes it
        await asyncio.sleep(0.02)
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


@aq.step
def hold(megabytes: int) -> list[str]:
    note("holds", os.getpid())
    held = bytearray(os.urandom(1)) * (megabytes << 20)
    while held and not beside_the_ledger("release").exists():
        time.sleep(0.05)
    return warmed


@aq.step
def small(_: int) -> int:
    note("small")
    return os.getpid()


holding = aq.flow("hold", hold)
smalls = aq.flow("small", small)
