"""Steps of every kind and ending, and one that counts what the worker holds by type."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter, OrderedDict, defaultdict, deque

from agentq import AgentQ, Context, each
from agentq.worker import hands

aq = AgentQ("census")
app = aq.celery

hands.CANCELLED_KEPT = 10  # full after a few, as it would be after a thousand

_CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict, Counter)


@aq.step
async def split(number: int) -> list[int]:
    return list(range(number))


@aq.step
async def member(ctx: Context, number: int) -> int:
    await ctx.step("half", halve, number)
    if number == 1:
        raise ValueError("one of them fails")
    return number


async def halve(number: int) -> float:
    await asyncio.sleep(0)
    return number / 2


@aq.step
def blocking(number: int) -> int:
    return number


@aq.step(retries=1, backoff="1ms")
async def again(ctx: Context, number: int) -> int:
    if ctx.attempt == 1:
        raise ConnectionError("not yet")
    return number


@aq.step(timeout="10ms", retries=0)
async def too_long(_: int) -> None:
    await asyncio.Event().wait()


@aq.step
async def endless(_: int) -> None:
    await asyncio.Event().wait()


@app.task
async def plain(number: int) -> int:
    return number


@app.task
async def census() -> dict[str, int]:
    """Return how many objects of each type there are, and how much is in all containers."""
    await asyncio.sleep(1)  # what has ended is sent
    gc.unfreeze()  # the worker's own parts, and their registries
    gc.collect()
    objects = gc.get_objects()
    counts = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in objects)
    counts["entries"] = sum(len(one) for one in objects if type(one) in _CONTAINERS)
    return dict(counts)


fan = aq.flow("fan", split >> each(member))
thread = aq.flow("thread", blocking)
retry = aq.flow("retry", again)
late = aq.flow("late", too_long)
cancelled = aq.flow("cancelled", endless)
