"""Tasks and a flow that are not started in time."""

from __future__ import annotations

import asyncio

from agentq import AgentQ, each
from tests.support.ledger import note

aq = AgentQ("expiring")
app = aq.celery


@app.task
def late(number: int) -> int:
    note("ran", number)
    return number


@app.task(acks_late=False)
def early(number: int) -> int:
    note("ran", number)
    return number


@aq.step(pool="critical")
async def plan(width: int) -> list[int]:
    return list(range(width))


@aq.step
async def slow(number: int) -> int:
    await asyncio.sleep(20)
    return number


fan = aq.flow("fan", plan >> each(slow))
