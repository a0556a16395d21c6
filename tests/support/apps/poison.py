"""Steps and tasks of which some end or hang the process they run in."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time

from celery import Task

from agentq import AgentQ, Context, Err, Ok, each
from tests.support.ledger import note

aq = AgentQ("poison")
app = aq.celery
app.conf.worker_lost_wait = 1  # prefork looks for 10 s whether a dead child has left a result

SECONDS = float(os.environ.get("AQ_TEST_SECONDS", "1"))


def strike(kind: str) -> None:
    """End or hang this process, without a chance for Python to notice."""
    note("poison", kind, os.getpid())
    match kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "regex":
            re.match(r"(a+)+$", "a" * 60 + "b")  # holds the GIL for years
        case "block":
            time.sleep(60)
        case _:
            raise ValueError(kind)


@aq.step(pool="critical")
async def plan(parts: list[int | str]) -> list[int | str]:
    return parts


@aq.step
async def member(ctx: Context, part: int | str) -> int:
    if isinstance(part, str):
        await asyncio.sleep(SECONDS / 2)  # until the others run
        strike(part)
    note("begin", part, ctx.worker, ctx.attempt, os.getpid())
    with ctx.spent("tools"):
        await asyncio.sleep(SECONDS)
    await ctx.progress("done", done=1)
    note("end", part, os.getpid())
    return int(part)


@aq.step(pool="critical")
async def body(outcomes: list[Ok[int] | Err]) -> list[list[object]]:
    return [["ok", x.value] if isinstance(x, Ok) else [x.kind, x.attempts] for x in outcomes]


def pid_of(number: int) -> int:
    note("begin", number, os.getpid())
    time.sleep(SECONDS)
    note("end", number, os.getpid())
    return number


@aq.step(kind="thread")
def in_thread(number: int) -> int:
    return pid_of(number)


@aq.step(kind="cpu")
def in_process(number: int) -> int:
    return pid_of(number)


@aq.step(retries=1, backoff="50ms")
async def fails_once(ctx: Context, number: int) -> int:
    note("begin", number, ctx.attempt, os.getpid())
    await asyncio.sleep(SECONDS)
    if len([x for x in open(os.environ["AQ_TEST_LEDGER"]) if x.startswith("raised")]) == 0:  # noqa: ASYNC230, PTH123, SIM115 -- a test's
        note("raised")
        raise RuntimeError("not yet")
    return number


@app.task
def adds(number: int) -> int:
    note("begin", number, os.getpid())
    time.sleep(SECONDS)
    note("end", number, os.getpid())
    return number


@app.task(bind=True)
def redelivered(self: Task, number: int) -> bool:
    pid_of(number)
    return bool(self.request.delivery_info["redelivered"])


@app.task
async def aadds(number: int) -> int:
    note("begin", number, os.getpid())
    await asyncio.sleep(SECONDS)
    note("end", number, os.getpid())
    return number


@app.task
def kills(kind: str) -> None:
    time.sleep(SECONDS / 2)
    strike(kind)


@app.task
async def akills(kind: str) -> None:
    await asyncio.sleep(SECONDS / 2)
    strike(kind)


@app.task
def collects(values: list[int]) -> int:
    note("collects", sum(values))
    return sum(values)


@app.task
def rescues(_request: object, exc: object, _traceback: object) -> None:
    note("rescues", type(exc).__name__)


fan = aq.flow("fan", plan >> each(member, at_once=500) >> body)
single = aq.flow("single", member)
threaded = aq.flow("threaded", in_thread)
computed = aq.flow("computed", in_process)
failing = aq.flow("failing", fails_once)
