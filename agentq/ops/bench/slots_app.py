"""The steps of `agentq bench slots`: one that computes on the loop, one that waits."""

from __future__ import annotations

import asyncio
import time

from agentq import AgentQ
from agentq.ops.bench.ledger import Ledger

PIECES, PIECE_S = 20, 0.002

ledger = Ledger.from_environment()
aq = AgentQ("bench-slots")
app = aq.celery


@app.task
async def compute(_: int) -> None:
    """Use 40 ms of CPU, 2 ms at a time, and wait a little after each."""
    for _piece in range(PIECES):
        end = time.thread_time() + PIECE_S
        while time.thread_time() < end:
            pass
        await asyncio.sleep(PIECE_S)
    ledger.tick()


@app.task
async def wait(_: int) -> None:
    """Wait as for a model."""
    await asyncio.sleep(1)
    ledger.tick()
