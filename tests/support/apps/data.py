"""Steps and tasks whose values, or whose exceptions' texts, are hard to write or easy to mistake."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any

from pydantic import BaseModel

from agentq import AgentQ, Context, Err, Ok, each
from tests.support.ledger import note

aq = AgentQ("data")
app = aq.celery
task = partial(app.task, shared=False)


class Silent(Exception):  # noqa: N818 -- no error
    """Its text can not be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Measured(BaseModel):
    value: float | None = None
    note: str | None = None


def throw(what: str) -> None:
    """Raise it."""
    note("threw", what)
    raise {
        "surrogate": ValueError("bad \udcff name"),
        "silent": Silent(),
        "long": ValueError("x" * 5_000_000),
    }[what]


# -- what looks like a reference to a fan-in's outcomes ----------------------------------------------


@aq.step
async def same(value: Any) -> Any:
    return value


@aq.step
async def heard(value: Any) -> dict[str, Any]:
    return {"heard": value}


@aq.step
async def claims_own(ctx: Context, _: Any) -> Any:
    """Name the join that this very run had."""
    return {"$join": f"{ctx.run_id}:j1", "flow": True}


@aq.step
async def numbers(n: int) -> list[int]:
    return list(range(n))


@aq.step
async def secret(number: int) -> str:
    return f"secret {number}"


@aq.step
async def holds(_: list[Ok[str] | Err]) -> None:
    note("holds")
    await asyncio.sleep(60)


@aq.step
async def shown(outcomes: list[Ok[Any] | Err]) -> list[Any]:
    return [one.value if isinstance(one, Ok) else [one.kind, one.message] for one in outcomes]


echo = aq.flow("echo", same >> heard)
own = aq.flow("own", numbers >> each(secret) >> claims_own >> heard)
held = aq.flow("held", numbers >> each(secret) >> holds)
members = aq.flow("members", same >> each(same) >> shown)


@task
def plain_same(value: Any) -> Any:
    return value


@task
async def coroutine_same(value: Any) -> Any:
    return value


@task
def plain_heard(value: Any) -> Any:
    return {"heard": value}


@task
async def coroutine_heard(value: Any) -> Any:
    return {"heard": value}


@task(bind=True)
def plain_claims_own(self: Any, _: Any) -> Any:
    return {"$join": self.request.aq["join"]}


@task(bind=True, max_retries=1)
def plain_at_last(self: Any, value: Any) -> Any:
    if not self.request.retries:
        raise self.retry(countdown=0)
    return value


# -- exceptions --------------------------------------------------------------------------------------


@aq.step
async def coroutine(what: str) -> None:
    throw(what)


@aq.step(kind="thread")
def thread(what: str) -> None:
    throw(what)


@aq.step(kind="cpu")
def process(what: str) -> None:
    throw(what)


throwing = {
    "coroutine": aq.flow("coroutine", coroutine),
    "thread": aq.flow("thread", thread),
    "process": aq.flow("process", process),
}
long_members = aq.flow("long-members", same >> each(coroutine) >> shown)


@task
def plain_throw(what: str) -> None:
    throw(what)


@task
async def coroutine_throw(what: str) -> None:
    throw(what)


# -- values ------------------------------------------------------------------------------------------


@aq.step
async def not_a_number(_: Any) -> Any:
    return {"scores": [1.0, math.nan]}


@aq.step
async def typed_not_a_number(_: Any) -> Measured:
    return Measured(value=math.inf)


@aq.step
async def long_text(size: int) -> str:
    return "x" * size


nan = aq.flow("nan", not_a_number)
typed_nan = aq.flow("typed-nan", typed_not_a_number)
measured = aq.flow("measured", same)
sizes = aq.flow("sizes", same >> each(long_text) >> shown)


@aq.step
async def measures(given: Measured) -> Measured:
    return given


typed = aq.flow("typed", measures)
