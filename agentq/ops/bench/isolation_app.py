"""The steps of `agentq bench isolation`: urgent ones, and the flood beside them."""

from __future__ import annotations

import asyncio

from agentq import AgentQ
from agentq.ops.bench.ledger import Ledger, Mark

ledger = Ledger.from_environment()
aq = AgentQ("bench-isolation")
app = aq.celery


@app.task
async def urgent(_: int) -> None:
    """Note when it began."""
    ledger.tick(Mark.JOIN)


@app.task
async def bulk(_: int) -> None:
    """Wait as short as a step can, and be counted."""
    await asyncio.sleep(0)
    ledger.tick()
