"""Steps that ask a dependency which fails a share of what it is asked, as a file says."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from random import Random

from agentq import AgentQ, Context
from tests.support.ledger import note

HOLD_S = float(os.environ.get("AQ_TEST_SECONDS", "0.3"))
DEPENDENCY = "AQ_TEST_DEPENDENCY"
"""Names the file; where there is none, nothing fails."""


def _failing() -> float:
    file = Path(os.environ[DEPENDENCY])
    return float(file.read_text() or 0) if file.exists() else 0.0


aq = AgentQ("avalanche")
app = aq.celery


@aq.step(retries=5, backoff="50ms")
async def ask(ctx: Context, number: int) -> int:
    note("start", number, ctx.attempt, ctx.worker, time.time())
    await asyncio.sleep(HOLD_S)
    if Random(f"{number} {ctx.attempt}").random() < _failing():  # noqa: S311
        raise ConnectionError("too many ask")
    note("done", number, ctx.attempt, ctx.worker, time.time())
    return number


work = aq.flow("work", ask)
