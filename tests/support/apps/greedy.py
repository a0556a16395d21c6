"""A run whose members each keep files open, more together than a small limit allows."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack

from agentq import AgentQ, Context, Err, Ok, each
from tests.support.ledger import note

aq = AgentQ("greedy")
app = aq.celery

FILES = 1
SECONDS = 2


@aq.step(pool="critical")
async def plan(width: int) -> list[int]:
    return list(range(width))


@aq.step(retries=50, backoff="100ms")
async def member(ctx: Context, number: int) -> int:
    """Raise "Too many open files" where there are too many; the attempt is then noted by nobody."""
    with ExitStack() as stack:
        for _ in range(FILES):
            stack.callback(os.close, os.open(__file__, os.O_RDONLY))
        await asyncio.sleep(SECONDS)
    note("end", number, ctx.attempt)
    return number


@aq.step(pool="critical")
async def body(outcomes: list[Ok[int] | Err]) -> list[int]:
    return [one.value if isinstance(one, Ok) else -1 for one in outcomes]


fan = aq.flow("fan", plan >> each(member) >> body)
