"""The steps that are measured, as agentq steps and flows, and the plain tasks beside them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from agentq import AgentQ, Err, Ok, each
from agentq.ops.bench.ledger import Ledger, Mark

PIPELINE_STEP_S = 0.05
# As wide as the widest fan-out: plain Celery has all members in flight too.
AT_ONCE = 5000

ledger = Ledger.from_environment()
aq = AgentQ("bench")
app = aq.celery

Outcomes = list[Ok[int] | Err]


@aq.step()
async def noop(payload: dict[str, Any]) -> None:  # noqa: ARG001 - it is carried, not read
    """Do nothing, and be counted."""
    ledger.tick()


@app.task
async def noop_task(payload: dict[str, Any]) -> None:  # noqa: ARG001
    """Do nothing, and be counted, as a task that knows nothing of agentq."""
    ledger.tick()


@aq.step()
async def stamp(payload: dict[str, Any]) -> float:  # noqa: ARG001
    """Return when it started."""
    return time.monotonic()


@aq.step()
async def sleeper(seconds: float) -> None:
    """Wait as a model call would."""
    await asyncio.sleep(seconds)
    ledger.tick()


@aq.step()
async def spread(width: int) -> list[int]:
    """Decide the members of a fan-out."""
    return list(range(width))


@aq.step()
async def child(index: int) -> int:
    """Be one member of a fan-out."""
    ledger.tick()
    return index


@aq.step()
async def final(outcomes: Outcomes) -> int:
    """Be the body of a fan-in."""
    ledger.tick(Mark.JOIN)
    return len(outcomes)


@aq.step()
async def plan(members: int) -> list[int]:
    """Start a pipeline."""
    await asyncio.sleep(PIPELINE_STEP_S)
    return list(range(members))


@aq.step()
async def execute(index: int) -> int:
    """Be one of a pipeline's parallel steps."""
    await asyncio.sleep(PIPELINE_STEP_S)
    return index


@aq.step()
async def review(outcomes: Outcomes) -> None:  # noqa: ARG001
    """End a pipeline."""
    await asyncio.sleep(PIPELINE_STEP_S)
    ledger.tick(Mark.REVIEW)


noop_flow = aq.flow("bench-noop", noop)
stamp_flow = aq.flow("bench-stamp", stamp)
sleeper_flow = aq.flow("bench-sleeper", sleeper)
fanin_flow = aq.flow("bench-fanin", spread >> each(child, at_once=AT_ONCE) >> final)
pipeline_flow = aq.flow("bench-pipeline", plan >> each(execute) >> review)
