"""The runs that `agentq bench shares` measures: 20 steps, some with a model call in each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from agentq import AgentQ, Context, Err, Ok, each

MEMBERS = 18
"""Of a run of 20 steps: one plans, one reviews."""


def declare(overrides: Mapping[str, object] | None = None) -> AgentQ:
    """Return the app: one for the worker, one for who submits."""
    aq = AgentQ("bench-shares", overrides=overrides)

    @aq.step(name="plan")
    async def plan(members: int) -> list[int]:
        return list(range(members))

    @aq.step(name="work")
    async def work(number: int) -> int:
        return number

    @aq.step(name="call")
    async def call(ctx: Context, number: int) -> int:
        await ctx.model("large").chat("Name three rivers." * 50, max_tokens=128)
        return number

    @aq.step(name="review")
    async def review(outcomes: list[Ok[int] | Err]) -> int:
        return len(outcomes)

    @aq.step(name="sleeper")
    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)

    aq.flow("work", plan >> each(work) >> review)
    aq.flow("call", plan >> each(call) >> review)
    aq.flow("sleep", sleeper)
    return aq


aq = declare()
