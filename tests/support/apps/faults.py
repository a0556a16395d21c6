"""A run of many short members, whose every start and end is noted outside Redis."""

from __future__ import annotations

import asyncio
import os
import time

from agentq import AgentQ, Context, Err, Ok, each
from tests.support.ledger import note

aq = AgentQ("faults")
app = aq.celery

SECONDS = float(os.environ.get("AQ_TEST_SECONDS", "0.2"))


@aq.step(pool="critical")
async def plan(ctx: Context, width: int) -> list[int]:
    note("plan", ctx.run_id)
    return list(range(width))


@aq.step
async def member(ctx: Context, number: int) -> int:
    note("begin", number, ctx.worker, ctx.attempt)
    await asyncio.sleep(SECONDS)
    note("end", number, ctx.worker)
    return number


@aq.step(pool="critical")
async def body(ctx: Context, outcomes: list[Ok[int] | Err]) -> list[int]:
    note("body", ctx.run_id)
    return [one.value if isinstance(one, Ok) else -1 for one in outcomes]


@aq.step
async def blocking(ctx: Context, seconds: float) -> str:
    note("blocking begin", ctx.worker, ctx.attempt)
    if ctx.attempt == 1:
        time.sleep(seconds)  # noqa: ASYNC251 -- that is the fault
    note("blocking end", ctx.worker, ctx.attempt)
    return ctx.worker


@aq.step
async def chatty(ctx: Context, parts: int) -> int:
    note("chatty begin")
    for number in range(parts):
        await ctx.progress("part", done=number)
        await asyncio.sleep(0.01)
    return parts


@aq.step
async def quick(ctx: Context, number: int) -> int:
    note("quick", number, ctx.worker)
    return number


fan = aq.flow("fan", plan >> each(member) >> body)
wide = aq.flow("wide", plan >> each(quick) >> body)
block = aq.flow("block", blocking)
chat = aq.flow("chat", chatty)
one = aq.flow("one", quick)
