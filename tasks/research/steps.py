"""The flow: plan, read the chosen documents in parallel, review, remember."""

from __future__ import annotations

import asyncio

from agentq import AgentQ, Context, Err, Ok, each
from tasks.research.models import Brief, Plan, Reading, Report, Review, Task
from tasks.research.notes import read_document
from tasks.research.planning import make_plan
from tasks.research.remembering import keep
from tasks.research.reviewing import reviewed

aq = AgentQ("research")


@aq.step(pool="critical", timeout="90s", retries=1)
async def plan(ctx: Context, brief: Brief) -> Plan:
    """List the documents, rank them against the question, choose those worth reading."""
    return await make_plan(ctx, brief)


@aq.step(pool="shared", timeout="3m", retries=2)
async def execute(ctx: Context, task: Task) -> Reading:
    """Read one document: a claim and its quotation, and the chat model's gloss where asked for."""
    await ctx.progress(f"reading {task.document.label}")
    return await read_document(ctx, task)


@aq.step(pool="critical", timeout="60s", retries=1)
async def review(ctx: Context, outcomes: list[Ok[Reading] | Err]) -> Review:
    """Drop what the sources do not support, merge, order, and say what is missing."""
    with ctx.spent("tools"):
        return await asyncio.to_thread(reviewed, outcomes)


@aq.step(pool="critical", timeout="30s", retries=1)
async def remember(ctx: Context, review: Review) -> Report:
    """Keep notes and report, so that the next run reuses what has not changed."""
    return await keep(ctx, review)


flow = aq.flow(
    "research", plan >> each(execute, of="tasks", at_once=16, join="all") >> review >> remember
)
