"""Steps that end in every way there is."""

from __future__ import annotations

import asyncio

from agentq import AgentQ, Context
from tests.support.ledger import note

aq = AgentQ("endings")
app = aq.celery


@aq.step
async def good(number: int) -> int:
    return number


@aq.step
async def bad(number: int) -> int:
    raise ValueError(number)


@aq.step(retries=2, backoff="10ms")
async def flaky(ctx: Context, number: int) -> int:
    if ctx.attempt == 1:
        raise ValueError(number)
    return number


@aq.step(timeout="100ms")
async def slow(number: int) -> int:
    await asyncio.sleep(30)
    return number


@aq.step
async def held(ctx: Context, number: int) -> int:
    note("held", ctx.run_id)
    await asyncio.sleep(30)
    return number


@app.task(shared=False)
def plain(number: int) -> int:
    return number


for step in (good, bad, flaky, slow, held):
    aq.flow(f"{step.name.rpartition('.')[2]}-flow", step)
