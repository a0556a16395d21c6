"""The chain that `agentq tune` measures.

    plan (critical) -> ten steps side by side (shared) -> review (critical)

Each of the ten waits as a tool would and joins a batch of a model's calls.
"""

from __future__ import annotations

import asyncio

from agentq import AgentQ, Err, Ok, each

WIDTH = 10
TOOL_S = 0.02
CALL_S, ITEM_S = 0.008, 0.0005
"""What a model's call costs, and each item of it more: a batch is cheaper than its items."""

aq = AgentQ("tune")


@aq.batched()
async def model(parts: list[int]) -> list[int]:
    """Answer a batch."""
    await asyncio.sleep(CALL_S + ITEM_S * len(parts))
    return [2 * part for part in parts]


@aq.step(pool="critical")
async def plan(width: int) -> list[int]:
    """Decide what is done."""
    return list(range(width))


@aq.step
async def execute(part: int) -> int:
    """Do one part."""
    await asyncio.sleep(TOOL_S)
    answer: int = await model(part)
    return answer


@aq.step(pool="critical")
async def review(parts: list[Ok[int] | Err]) -> int:
    """Put the parts together."""
    return sum(part.value for part in parts if isinstance(part, Ok))


chain = aq.flow("tune-chain", plan >> each(execute) >> review)
