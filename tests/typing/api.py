"""The public API as a user's type checker sees it: checked by `make check`, never run."""

from __future__ import annotations

from typing import assert_type

from celery import Celery
from pydantic import BaseModel

from agentq import AgentQ, Context, Err, Ok, RunHandle, Settings, each, load_settings


class Brief(BaseModel):
    """What a run is given."""

    question: str


class Plan(BaseModel):
    """What is to be done."""

    tasks: list[str]


aq = AgentQ("typed", overrides={"worker.slots": 10})


@aq.step(pool="critical", timeout="30s", retries=2, backoff="1s")
async def plan(ctx: Context, brief: Brief) -> Plan:
    """Use what a context offers."""
    await ctx.progress("planning", done=0, total=1)
    vectors = await ctx.embed([brief.question])
    assert_type(vectors, list[list[float]])
    reply = await ctx.model("small").chat(brief.question, max_tokens=8)
    return Plan(tasks=[reply.text])


@aq.step
def execute(task: str) -> int:
    """Run in a thread."""
    return len(task)


@aq.batched(max_items=16, window="15ms")
async def lengths(texts: list[str]) -> list[int]:
    """Run for many at once."""
    return [len(text) for text in texts]


@aq.step(kind="cpu")
def review(found: list[Ok[int] | Err]) -> int:
    """Run in a process."""
    return sum(one.value for one in found if isinstance(one, Ok))


flow = aq.flow("typed", plan >> each(execute >> lengths, of="tasks", at_once=4) >> review)


async def use() -> None:
    """Submit, blocking and awaited."""
    run = flow.submit(Brief(question="?"), key="k", deadline="2m", priority="high", tenant="t")
    assert_type(run, RunHandle)
    assert_type(run.cancel(), bool)
    assert_type(flow.submit_many([Brief(question="?")]), list[RunHandle])
    later = await flow.asubmit(Brief(question="?"))
    await later.aresult(timeout=1)
    async for event in later.aevents():
        assert_type(event.kind, str)
    settings = load_settings()
    assert_type(settings, Settings)
    app: Celery = aq.celery
    app.send_task("typed")
