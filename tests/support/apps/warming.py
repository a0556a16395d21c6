"""Functions that warm up: a coroutine, a plain one, one that fails, one without an end, a child's."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from agentq import AgentQ
from tests.support.ledger import note

aq = AgentQ("warming")
app = aq.celery

warmed: list[str] = []


@aq.warm
async def connects() -> None:
    await asyncio.sleep(0)
    warmed.append("coroutine")
    note("warm", "coroutine", threading.current_thread() is threading.main_thread())


@aq.warm
def imports() -> None:
    warmed.append("function")
    note("warm", "function", threading.current_thread() is threading.main_thread())


@aq.warm
def fails() -> None:
    note("warm", "fails")
    raise ValueError("no table")


@aq.warm
async def never_ends() -> None:
    note("warm", "endless")
    await asyncio.Event().wait()


@aq.warm(kind="cpu")
def in_child() -> None:
    warmed.append("child")
    note("warm", "child", os.getpid())


@aq.step
async def seen(_: int) -> list[str]:
    return warmed


@aq.step(kind="cpu")
def seen_in_child(_: int) -> tuple[int, list[str]]:
    return os.getpid(), warmed


@aq.step(kind="cpu", retries=0)
def dies(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@aq.step
async def rests(seconds: float) -> None:
    await asyncio.sleep(seconds)


see = aq.flow("see", seen)
see_in_child = aq.flow("see in child", seen_in_child)
die = aq.flow("die", dies)
rest = aq.flow("rest", rests)
