"""Steps of both pools that note which process ran them, and some that do harm, for units."""

from __future__ import annotations

import asyncio
import os
import time

from agentq import AgentQ, Context, Err, Ok, each
from agentq.host.process import rss_bytes
from tests.support.ledger import VARIABLE, Ledger, note

aq = AgentQ("units")
app = aq.celery


@aq.step(pool="critical")
async def plan(ctx: Context, width: int) -> list[int]:
    note("plan", ctx.run_id, ctx.worker)
    return list(range(width))


@aq.step
async def member(ctx: Context, number: int) -> int:
    note("member", ctx.run_id, number, ctx.worker, ctx.attempt)
    await asyncio.sleep(0.3)
    note("ended", ctx.run_id, number)
    return number


@aq.step(pool="critical")
async def body(ctx: Context, outcomes: list[Ok[int] | Err]) -> int:
    note("body", ctx.run_id, ctx.worker)
    return sum(one.value for one in outcomes if isinstance(one, Ok))


@aq.step(pool="critical")
async def urgent(ctx: Context, number: int) -> int:
    note("urgent", number, ctx.worker)
    return number


@aq.step
async def hold(ctx: Context, seconds: float) -> int:
    """Take *seconds* the first time it is started."""
    note("hold", ctx.run_id, ctx.worker, os.getpid())
    began = len(Ledger.at(os.environ[VARIABLE]).lines(f"hold {ctx.run_id} "))
    if began == 1:
        await asyncio.sleep(seconds)
    return began


@aq.step
async def seize(ctx: Context, seconds: float) -> int:
    """Block the loop for *seconds* the first time it is started."""
    note("seize", ctx.run_id, ctx.worker)
    began = len(Ledger.at(os.environ[VARIABLE]).lines(f"seize {ctx.run_id} "))
    if began == 1:
        time.sleep(seconds)  # noqa: ASYNC251 -- that is the fault
    return began


@aq.step(pool="critical")
async def swell(ctx: Context, megabytes: int) -> int:
    """Keep the process at so many *megabytes* the first time it is started."""
    note("swell", ctx.run_id, ctx.worker, os.getpid())
    began = len(Ledger.at(os.environ[VARIABLE]).lines(f"swell {ctx.run_id} "))
    if began == 1:
        taken = bytearray((megabytes << 20) - rss_bytes(os.getpid()))
        taken[::4096] = b"x" * len(taken[::4096])
        await asyncio.sleep(300)
    return began


@aq.step
async def hog(ctx: Context, megabytes: int) -> int:
    note("hog", ctx.run_id, ctx.worker, os.getpid())
    taken = bytearray(megabytes << 20)
    taken[::4096] = b"x" * len(taken[::4096])
    return len(taken)


fan = aq.flow("fan", plan >> each(member) >> body)
first = aq.flow("first", urgent)
held = aq.flow("held", hold)
seized = aq.flow("seized", seize)
greedy = aq.flow("greedy", hog)
swelling = aq.flow("swelling", swell)
