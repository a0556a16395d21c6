"""Steps that hold memory for as long as a file says."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agentq import AgentQ, Context
from tests.support.ledger import VARIABLE, note

aq = AgentQ("holding")
app = aq.celery


def release_file() -> Path:
    """Where it is, the steps let go."""
    return Path(os.environ[VARIABLE]).with_name("release")


@aq.step(retries=0)
async def hold(ctx: Context, megabytes: int) -> str:
    note("holds", ctx.worker, os.getpid())
    held = bytearray(os.urandom(1)) * (megabytes << 20)
    while not release_file().exists():  # noqa: ASYNC110 -- another process makes it
        await asyncio.sleep(0.05)
    note("held", len(held) >> 20)
    return ctx.worker


@aq.step(retries=0)
async def small(ctx: Context, number: int) -> str:
    note("small", number)
    return ctx.worker


holding = aq.flow("hold", hold)
smalls = aq.flow("small", small)
