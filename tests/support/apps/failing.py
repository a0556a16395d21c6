"""A step and a task whose dependency is gone: every attempt is noted, and raises."""

from __future__ import annotations

from typing import Any

from agentq import AgentQ, Context
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


step_flow = aq.flow("step", step)
