"""Flows of every shape, whose steps note in a ledger file what they do."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from agentq import AgentQ, Context, Err, Ok, each
from agentq.errors import DeadlineExceeded
from tests.support.ledger import note

aq = AgentQ("flows")
app = aq.celery


class Brief(BaseModel):
    """How wide, and which members fail."""

    n: int
    bad: list[int] = []


class Task(BaseModel):
    number: int
    bad: bool = False


class Plan(BaseModel):
    tasks: list[Task]


class Found(BaseModel):
    double: int


Outcomes = list[Ok[Found] | Err]


@aq.step(pool="critical")
async def plan(ctx: Context, brief: Brief) -> Plan:
    note("plan", ctx.run_id)
    return Plan(tasks=[Task(number=i, bad=i in brief.bad) for i in range(brief.n)])


@aq.step
async def execute(ctx: Context, task: Task) -> Found:
    note("execute", ctx.run_id, task.number)
    if task.bad:
        raise ValueError(f"task {task.number} is bad")
    return Found(double=task.number * 2)


@aq.step(pool="critical")
async def review(ctx: Context, outcomes: Outcomes) -> Outcomes:
    note("review", ctx.run_id, len(outcomes))
    assert all(isinstance(one, Ok | Err) for one in outcomes)
    return outcomes


@aq.step(pool="critical")
async def remember(ctx: Context, outcomes: Outcomes) -> Outcomes:
    note("remember", ctx.run_id)
    return outcomes


research = aq.flow("research", plan >> each(execute, of="tasks") >> review >> remember)
narrow = aq.flow("narrow", plan >> each(execute, of="tasks", at_once=3) >> review)
open_end = aq.flow("open-end", plan >> each(execute, of="tasks"))


# -- nested ---------------------------------------------------------------------------------------


@aq.step
async def rows(n: int) -> list[int]:
    return list(range(n))


@aq.step
async def columns(ctx: Context, row: int) -> list[list[int]]:
    note("columns", ctx.run_id, row)
    return [[row, column] for column in range(row)]


@aq.step
async def cell(ctx: Context, place: list[int]) -> int:
    note("cell", ctx.run_id, *place)
    if place == [2, 1]:
        raise ValueError("no such cell")
    return place[0] * 10 + place[1]


@aq.step
async def row_total(ctx: Context, cells: list[Ok[int] | Err]) -> str:
    note("row", ctx.run_id, len(cells))
    return ",".join(str(one.value) if isinstance(one, Ok) else one.kind for one in cells)


@aq.step
async def table(ctx: Context, found: list[Ok[str] | Err]) -> str:
    note("table", ctx.run_id)
    return ";".join(one.value if isinstance(one, Ok) else one.kind for one in found)


@aq.step
async def plus_one(number: int) -> int:
    return number + 1


@aq.step
async def times_ten(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number * 10


@aq.step
async def numbers(found: list[Ok[int] | Err]) -> list[int | str]:
    return [one.value if isinstance(one, Ok) else one.kind for one in found]


sequence = aq.flow("sequence", rows >> each(plus_one >> times_ten) >> numbers)
grid = aq.flow("grid", rows >> each(columns >> each(cell) >> row_total) >> table)
nested_open = aq.flow("nested-open", rows >> each(columns >> each(cell)))


# -- time and failure -----------------------------------------------------------------------------


@aq.step(retries=3, backoff="100ms")
async def flaky(ctx: Context, failures: int) -> int:
    note("flaky", ctx.run_id, ctx.attempt, time.monotonic())
    if ctx.attempt <= failures:
        raise ConnectionError(f"attempt {ctx.attempt}")
    return ctx.attempt


@aq.step(timeout="200ms")
async def slow(ctx: Context, seconds: float) -> str:
    await asyncio.sleep(seconds)
    note("slow ended", ctx.run_id)
    return "done"


@aq.step
async def sleeper(ctx: Context, seconds: float) -> float:
    note("sleeper began", ctx.run_id)
    await asyncio.sleep(seconds)
    note("sleeper ended", ctx.run_id)
    return seconds


@aq.step
async def left(ctx: Context, _: object) -> list[float]:
    first = ctx.remaining() or timedelta(0)
    await asyncio.sleep(0.05)
    return [first.total_seconds(), (ctx.remaining() or timedelta(0)).total_seconds()]


@aq.step
async def no_limit(ctx: Context) -> bool:
    return ctx.remaining() is None


@aq.step(kind="thread", timeout="300ms")
def in_thread(seconds: float) -> str:
    time.sleep(seconds)
    return f"{os.getpid()}"


@aq.step(kind="cpu")
def in_process(seconds: float) -> int:
    note("cpu began", os.getpid())
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    note("cpu ended", os.getpid())
    return os.getpid()


@aq.step(kind="cpu", timeout="1s")
def part_of_a_second(_: int) -> int:
    time.sleep(0.4)
    return 1


@aq.step(kind="cpu", timeout="300ms")
def too_long(_: int) -> None:
    note("too long began", os.getpid())
    time.sleep(60)


@aq.step(kind="thread", timeout="1s")
def part_of_a_second_in_a_thread(_: int) -> int:
    time.sleep(0.4)
    return 1


@aq.step(kind="cpu")
def dying_process(_: object) -> None:
    os._exit(3)


@aq.step
async def host_pid(_: object) -> int:
    return os.getpid()


retried = aq.flow("retried", flaky)
timed = aq.flow("timed", slow)
sleeping = aq.flow("sleeping", sleeper)
remaining = aq.flow("remaining", left)
unlimited = aq.flow("unlimited", no_limit)
threaded = aq.flow("threaded", in_thread)
cpu = aq.flow("cpu", in_process)
limited_cpu = aq.flow("limited-cpu", too_long)
busy_cpu = aq.flow("busy-cpu", rows >> each(part_of_a_second) >> numbers)
busy_threads = aq.flow("busy-threads", rows >> each(part_of_a_second_in_a_thread) >> numbers)
dying_cpu = aq.flow("dying-cpu", dying_process)
pid = aq.flow("pid", host_pid)
naps = aq.flow("naps", rows >> each(sleeper) >> numbers)


# -- what goes wrong in a step's own code ---------------------------------------------------------


@aq.step
async def wrong_type(_: object) -> Found:
    return {"double": "many"}  # type: ignore[return-value]


@aq.step
async def not_a_list(_: object) -> dict[str, int]:
    return {"tasks": 5}


@aq.step
async def unlike_text(_: object) -> Any:
    return 5


@aq.step
async def wants_text(text: str) -> str:
    return text


@aq.step
async def bystander(_: object) -> None:
    """Raise what agentq itself raises, for another reason."""
    raise DeadlineExceeded("of another run")


@aq.step
async def awaits_a_cancelled_task(_: object) -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


@aq.step
async def exits(_: object) -> None:
    sys.exit("enough")


@aq.step
def exits_in_thread(_: object) -> None:
    sys.exit("enough")


@aq.step
async def talkative(ctx: Context, n: int) -> str:
    for number in range(n):
        await ctx.progress(f"part {number}", done=number, total=n)
    return "said"


@aq.step
async def values(_: object) -> list[dict[str, int]]:
    return [{"value": 1}]


@aq.step
async def unannotated(things):  # noqa: ANN001, ANN201 -- that is the point
    return repr(things)


wrong = aq.flow("wrong", wrong_type)
no_fan_out = aq.flow("no-fan-out", not_a_list >> each(plus_one, of="tasks") >> numbers)
mismatch = aq.flow("mismatch", unlike_text >> wants_text)
other_deadline = aq.flow("other-deadline", bystander)
own_cancel = aq.flow("own-cancel", awaits_a_cancelled_task)
exiting = aq.flow("exiting", exits)
exiting_thread = aq.flow("exiting-thread", exits_in_thread)
talk = aq.flow("talk", talkative)
plain_list = aq.flow("plain-list", values >> unannotated)
untyped_body = aq.flow("untyped-body", rows >> each(plus_one) >> unannotated)
