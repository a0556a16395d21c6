"""A step and a task whose dependency is gone: every attempt is noted, and raises."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from agentq import AgentQ, Context
from agentq.errors import ModelRateLimited
from tests.support.ledger import note

aq = AgentQ("failing")
app = aq.celery


@aq.step(retries=3, backoff="10ms")
async def step(ctx: Context, number: int) -> None:
    note("start", ctx.attempt - 1, "step", number)
    raise ConnectionError("gone")


@app.task(bind=True, shared=False, max_retries=3, default_retry_delay=0.01)
async def task(self: Any, number: int) -> None:
    note("start", self.request.retries, "task", number)
    raise self.retry(exc=ConnectionError("gone"))


@aq.step(retries=1, backoff="1ms")
async def asked_to_wait(ctx: Context, seconds: float) -> float:
    note("asked", time.time())
    if ctx.attempt == 1:
        raise ModelRateLimited("429", retry_after=timedelta(seconds=seconds))
    return seconds


asked_flow = aq.flow("asked", asked_to_wait)
step_flow = aq.flow("step", step)
