"""The app whose work is recorded: a change here changes the recordings."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from agentq import AgentQ, Context, Err, Ok, each
from tests.support.ledger import note

aq = AgentQ("wire")
app = aq.celery
task = partial(app.task, shared=False)  # a test session imports this module more than once


LARGE = "large " * 50_000
"""Beyond `broker.max_payload`: what carries it refers to a blob."""


class Size(StrEnum):
    SMALL = "small"


class Part(BaseModel):
    name: str
    weight: float | None = None


class Brief(BaseModel):
    """One field of each kind that users send."""

    text: str = "Grüße, 世界"
    number: int = -1
    share: float = 0.1
    sure: bool = True
    size: Size = Size.SMALL
    at: datetime = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    day: date = date(2026, 1, 2)
    hour: time = time(3, 4)
    span: timedelta = timedelta(minutes=90)
    price: Decimal = Decimal("12.50")
    id: UUID = UUID(int=7)
    data: bytes = b"bytes"
    parts: list[Part] = [Part(name="a"), Part(name="b", weight=1.5)]
    by_name: dict[str, tuple[int, str]] = {"x": (1, "one")}
    names: frozenset[str] = frozenset({"only"})


@aq.step(name="wire.count", pool="critical")
async def count(ctx: Context, n: int) -> list[int]:
    note("count", ctx.run_id)
    await ctx.progress("counting", done=n, total=n)
    return list(range(n))


@aq.step(name="wire.double")
async def double(ctx: Context, number: int) -> int:
    note("double", ctx.task_id)
    if number == 1:
        raise ValueError("one is not to be doubled")
    return 2 * number


@aq.step(name="wire.together", pool="critical")
async def together(ctx: Context, found: list[Ok[int] | Err]) -> int:
    note("together", ctx.run_id)
    return sum(one.value for one in found if isinstance(one, Ok))


@aq.step(name="wire.grow")
async def grow(ctx: Context, _: int) -> str:
    note("grow", ctx.task_id)
    return LARGE


@aq.step(name="wire.sized")
async def sized(ctx: Context, found: list[Ok[str] | Err]) -> list[int]:
    note("sized", ctx.run_id)
    return [len(one.value) for one in found if isinstance(one, Ok)]


@aq.step(name="wire.kept", lane="low")
async def kept(ctx: Context, total: int) -> int:
    note("kept", ctx.run_id)
    return total


@aq.step(name="wire.shaky", retries=1, backoff="10s")
async def shaky(ctx: Context, times: int) -> int:
    note("shaky", ctx.run_id, ctx.attempt)
    if ctx.attempt <= times:
        raise ConnectionError(f"attempt {ctx.attempt}")
    return ctx.attempt


@aq.step(name="wire.typed")
async def typed(ctx: Context, brief: Brief) -> Brief:
    note("typed", ctx.run_id)
    return brief


counted = aq.flow("counted", count >> each(double, at_once=2) >> together >> kept)
shaken = aq.flow("shaken", shaky)
echoed = aq.flow("echoed", typed)
grown = aq.flow("grown", count >> each(grow, at_once=2) >> sized)


@task(name="wire.add")
async def add(x: int, y: int) -> int:
    note("add", x, y)
    return x + y


@task(name="wire.total")
async def total(numbers: list[int]) -> int:
    note("total", *numbers)
    return sum(numbers)


@task(name="wire.fails")
async def fails(*_: Any) -> None:
    note("fails")
    raise ValueError("as it should")


@task(name="wire.again", bind=True, max_retries=2)
async def again(self: Any, value: int) -> int:
    note("again", value, self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=20)
    return value
