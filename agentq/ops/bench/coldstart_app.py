"""The step of `agentq bench coldstart`: it needs a table that takes a while to make."""

from __future__ import annotations

import asyncio
import functools
import os

from agentq import AgentQ
from agentq.ops.bench.coldstart import WARM_VARIABLE
from agentq.ops.bench.ledger import Ledger

TABLE_S = 0.3

ledger = Ledger.from_environment()
aq = AgentQ("bench-coldstart")
app = aq.celery


@functools.cache
def table() -> dict[int, str]:
    """Return what a tokenizer or a schema would be: made once, for some `TABLE_S` of CPU."""
    import hashlib  # noqa: PLC0415 -- part of what is late

    return {number: hashlib.md5(b"%d" % number).hexdigest() for number in range(300_000)}  # noqa: S324


@app.task
async def answer(number: int) -> None:
    """Use the table, and be counted."""
    await asyncio.sleep(0)
    assert table()[number]  # noqa: S101 -- used
    ledger.tick()


if WARM_VARIABLE in os.environ:
    aq.warm(table)
