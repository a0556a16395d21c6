"""Steps whose arguments, values and results are large."""

from __future__ import annotations

import os
import signal
from typing import Any

from agentq import AgentQ, Context, Err, Ok, each
from tests.support.ledger import note

aq = AgentQ("large")
app = aq.celery


@aq.step(pool="critical")
async def plan(ctx: Context, text: str) -> list[str]:
    """Ask for three members, each given as much."""
    note("plan", ctx.worker, len(text))
    return [f"{number}{text}" for number in range(3)]


@aq.step
async def search(ctx: Context, text: str) -> str:
    note("search", ctx.worker, len(text))
    return text[::-1]


@aq.step(pool="critical")
async def review(found: list[Ok[str] | Err]) -> list[Any]:
    return [one.value if isinstance(one, Ok) else [one.kind, one.message] for one in found]


@aq.step
async def same(value: Any) -> Any:
    note("same")
    return value


@aq.step(retries=1, backoff="10ms")
async def grow(size: int) -> str:
    note("grow")
    return "x" * size


@aq.step(kind="thread")
def measure(text: str) -> int:
    return len(text)


@aq.step
async def lengths(found: list[Ok[Any] | Err]) -> list[Any]:
    return [len(one.value) if isinstance(one, Ok) else one.kind for one in found]


@aq.step
async def values(found: list[Ok[Any] | Err]) -> list[Any]:
    return [one.value if isinstance(one, Ok) else one.kind for one in found]


@aq.step
async def once_it_kills(ctx: Context, text: str) -> int:
    """Kill its process the first time it runs."""
    note("once_it_kills", len(text))
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(text)


research = aq.flow("research", plan >> each(search) >> review)
echo = aq.flow("echo", same)
pair = aq.flow("pair", same >> same)
growing = aq.flow("growing", grow >> measure)
sizes = aq.flow("sizes", same >> each(grow) >> lengths)
lists = aq.flow("lists", same >> each(same) >> values)
small_budget = aq.flow("small-budget", same >> same >> same, max_bytes=1_000_000)
small_members = aq.flow("small-members", same >> each(same) >> lengths, max_bytes=1_000_000)
deadly = aq.flow("deadly", once_it_kills)
