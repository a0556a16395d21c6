"""A flow and Celery tasks in one app, for tests that look at all of what a worker does."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from agentq import AgentQ, Context, Err, Ok, each
from tests.support.ledger import note

aq = AgentQ("both")
app = aq.celery
task = partial(app.task, shared=False)  # a test session imports this module more than once


@aq.step(pool="critical")
async def count(n: int) -> list[int]:
    return list(range(n))


@aq.step
async def double(ctx: Context, number: int) -> int:
    note("double", ctx.run_id, number)
    return 2 * number


@aq.step
async def together(ctx: Context, found: list[Ok[int] | Err]) -> int:
    note("together", ctx.run_id, len(found))
    return sum(one.value for one in found if isinstance(one, Ok))


@aq.step
async def sleep(ctx: Context, seconds: float) -> float:
    note("began", ctx.run_id)
    await asyncio.sleep(seconds)
    note("ended", ctx.run_id)
    return seconds


doubled = aq.flow("doubled", count >> each(double) >> together)
sleeping = aq.flow("sleeping", sleep)


@task
def add(x: int, y: int) -> int:
    note("add", x, y)
    return x + y


@task
def total(numbers: list[int]) -> int:
    note("total", *numbers)
    return sum(numbers)


@task
def same(value: Any) -> Any:
    return value


@task(bind=True, max_retries=3)
def second_time(self: Any, value: int) -> int:
    note("second_time", value, self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return value
