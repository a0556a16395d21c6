"""What processes do that die at a fail-point: every step and task notes that it ran.

A test submits through an app of its own (`declared`), workers and producers import this module.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from celery import chord, group

from agentq import AgentQ, Context, Err, Ok, each
from tests.support.ledger import note

NEW = "AQ_TEST_NEW"
"""Set for processes of a later version, which has one more step."""


def seconds() -> float:
    """Return how long a member takes in this process."""
    return float(os.environ.get("AQ_TEST_SECONDS", "0"))


async def plan(ctx: Context, width: int) -> list[int]:
    note("plan", ctx.run_id)
    return list(range(width))


async def member(number: int) -> int:
    note("member", number)
    if seconds():
        await asyncio.sleep(seconds())
    return number


async def body(ctx: Context, outcomes: list[Ok[int] | Err]) -> int:
    note("body", ctx.run_id)
    return len(outcomes)


async def uneasy(ctx: Context, number: int) -> int:
    note("uneasy", number)
    if ctx.attempt == 1:
        raise ConnectionError("not yet")
    return number


async def newest(number: int) -> int:
    note("newest", number)
    return number


async def counted(number: int) -> int:
    note("counted", number)
    return number


def total(numbers: list[int], name: str) -> int:
    note("total", name, sum(numbers))
    return sum(numbers)


def declared(broker_url: str | None = None) -> AgentQ:
    """Return the app, for the broker at *broker_url* or the one that the environment names."""
    aq = AgentQ("points", overrides={"broker.url": broker_url} if broker_url else None)
    first = aq.step(name="points.plan", pool="critical")(plan)
    last = aq.step(name="points.body", pool="critical")(body)
    one = aq.step(name="points.member")(member)
    aq.flow("fan", first >> each(one) >> last)
    aq.flow("one", one)
    aq.flow("uneasy", aq.step(name="points.uneasy", retries=2, backoff="50ms")(uneasy))
    for function in (counted, total):
        aq.celery.task(name=f"points.{function.__name__}", shared=False)(function)
    if not broker_url and NEW not in os.environ:
        return aq
    aq.flow("newest", aq.step(name="points.newest")(newest))
    return aq


aq = declared()
app = aq.celery


def send_group(aq: AgentQ, count: int, name: str) -> None:
    """Publish a group; under the same *name* its members have the same ids each time."""
    members = [_task(aq, "counted").si(n).set(task_id=f"{name} {n}") for n in range(count)]
    group(members).apply_async()


def send_later(aq: AgentQ, after_s: float, name: str) -> None:
    """Publish a task that is due *after_s* seconds from now; the same *name* is the same id."""
    _task(aq, "counted").apply_async((0,), countdown=after_s, task_id=name)


def send_chord(aq: AgentQ, width: int, name: str) -> None:
    """Publish a chord whose body notes *name* and the sum of 1 to *width*."""
    header = [_task(aq, "counted").si(n) for n in range(1, width + 1)]
    chord(header, app=aq.celery)(_task(aq, "total").s(name))


def _task(aq: AgentQ, name: str) -> Any:
    return aq.celery.tasks[f"points.{name}"]
