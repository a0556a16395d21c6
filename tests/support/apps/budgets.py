"""Flows whose runs have small budgets."""

from __future__ import annotations

from agentq import AgentQ, Err, Ok, each

aq = AgentQ("budgets")
app = aq.celery


@aq.step
async def numbers(count: int) -> list[int]:
    return list(range(count))


@aq.step
async def text(size: int) -> str:
    return "x" * size


@aq.step
async def sizes(size: int) -> list[int]:
    return [size, size]


@aq.step
async def count(found: list[Ok[object] | Err]) -> int:
    return len(found)


wide = aq.flow("wide", numbers >> each(text) >> count, max_members=5)
nested = aq.flow("nested", numbers >> each(numbers >> each(text) >> count) >> count, max_members=12)
heavy = aq.flow("heavy", sizes >> each(text) >> count, max_bytes=50_000)
