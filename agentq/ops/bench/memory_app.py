"""The steps of `agentq bench memory`: what an agent's steps leave behind in a process."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import orjson

from agentq import AgentQ
from agentq.ops.bench.ledger import Ledger

ledger = Ledger.from_environment()
aq = AgentQ("bench-memory")
app = aq.celery

Documents = list[dict[str, Any]]

_WAIT_S = (0.05, 0.5)
"""As a model call: what many hold meanwhile is freed in no order."""

_IN_THREADS = 10
"""One of so many answers comes from a thread, as a blocking tool's would."""


@app.task
async def digest(documents: Documents) -> Documents:
    """Hold what came and what is made of it while a model would answer; return as much."""
    request = orjson.dumps({"messages": documents})
    await asyncio.sleep(random.uniform(*_WAIT_S))  # noqa: S311 -- a spread, no secret
    if random.randrange(_IN_THREADS):  # noqa: S311 -- as above
        reply = _answer(request)
    else:
        reply = await asyncio.to_thread(_answer, request)
    ledger.tick()
    return reply


def _answer(request: bytes) -> Documents:
    reply: Documents = orjson.loads(request)["messages"]
    return reply
