"""Flows, plain tasks, retries and delays whose store clients fail, as `store_faults` is told to."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any

from agentq import AgentQ, Context, Err, Ok, each
from tests.support import store_faults
from tests.support.ledger import note

store_faults.from_environment()

aq = AgentQ("stormy")
app = aq.celery
task = partial(app.task, shared=False)

FAILING = int(os.environ.get("AQ_TEST_FAILING", "0"))
"""Every so-manieth member raises in its first attempt; 0: none does."""


@aq.step(pool="critical")
async def plan(ctx: Context, width: int) -> list[int]:
    note("plan", ctx.run_id)
    return list(range(width))


@aq.step(retries=1, backoff="20ms")
async def member(ctx: Context, number: int) -> int:
    note("member", ctx.run_id, number)
    await asyncio.sleep(0.01)
    if FAILING and number % FAILING == 0 and ctx.attempt == 1:
        raise ConnectionError("the first time")
    note("found", ctx.run_id, number)
    return number


@aq.step(pool="critical")
async def total(ctx: Context, outcomes: list[Ok[int] | Err]) -> int:
    note("total", ctx.run_id)
    return sum(one.value if isinstance(one, Ok) else -1_000_000 for one in outcomes)


fan = aq.flow("fan", plan >> each(member, at_once=4) >> total)


@task
async def plain(tag: str) -> str:
    note("plain", tag)
    return tag


@task
def threaded(tag: str) -> str:
    note("threaded", tag)
    return tag


@task(bind=True, max_retries=2, default_retry_delay=0.02)
async def again(self: Any, tag: str) -> str:
    note("again", tag, self.request.retries)
    if self.request.retries < self.max_retries:
        raise self.retry()
    return tag


@task
def gathered(results: list[str], tag: str) -> int:
    note("gathered", tag)
    return len(results)
