"""Work for the fault matrix: each beginning and end is noted outside Redis, with its time.

A line is `begin|end|fail <label> <task id> <process id> <seconds>`, seconds of the machine's monotonic
clock. A label names one piece of work: a second task id under it would be a second delivery of it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from celery import signals

from agentq import AgentQ, Context, Err, Ok, each
from tests.support.ledger import VARIABLE, note

aq = AgentQ("matrix")
app = aq.celery
# Not shared: a process imports this module more than once, each time with an app of its own.
task = partial(app.task, shared=False, bind=True)

DIE_AFTER = "AQ_TEST_DIE_AFTER"
"""Whom `work` kills once its result is stored: its own process (`child`) or its group (`worker`)."""


def noted(what: str, label: str, task_id: str) -> None:
    note(what, label, task_id, os.getpid(), f"{time.monotonic():.3f}")


@task
async def work(self: Any, label: str, seconds: float = 0.0) -> str:
    noted("begin", label, self.request.id)
    await asyncio.sleep(seconds)
    noted("end", label, self.request.id)
    return label


@task
async def flaky(self: Any, label: str, failures: int) -> str:
    """Fail that often, each time to be tried again a little later."""
    noted("begin", label, self.request.id)
    if self.request.retries < failures:
        noted("fail", label, self.request.id)
        raise self.retry(countdown=0.3)
    noted("end", label, self.request.id)
    return label


@task
def total(self: Any, labels: list[str], label: str) -> int:
    """Be a chord's body; returns how many members it was given."""
    noted("begin", label, self.request.id)
    noted("end", label, self.request.id)
    return len(set(labels))


@task
async def total_async(self: Any, labels: list[str], label: str) -> int:
    """Be one that runs on the loop."""
    noted("begin", label, self.request.id)
    noted("end", label, self.request.id)
    return len(set(labels))


@task
def padded(self: Any, label: str, padding: str) -> str:
    """Be a message of many bytes."""
    noted("begin", label, self.request.id)
    noted("end", label, self.request.id)
    return label if padding else ""


@task
def holds_gil(self: Any, label: str, letters: int) -> str:
    """Compute in C, at the first time only, so that no other thread of the process runs."""
    noted("begin", label, self.request.id)
    if _first(label):
        re.match(r"(a+)+$", "a" * letters + "b")  # twice as long for each letter
    noted("end", label, self.request.id)
    return label


@aq.step(pool="critical")
async def plan(ctx: Context, spec: list[Any]) -> list[list[Any]]:
    prefix, width, seconds = spec
    noted("begin", f"{prefix}.plan", ctx.task_id)
    noted("end", f"{prefix}.plan", ctx.task_id)
    return [[f"{prefix}.{number}", seconds] for number in range(width)]


@aq.step
async def member(ctx: Context, piece: list[Any]) -> str:
    label, seconds = piece
    noted("begin", label, ctx.task_id)
    await asyncio.sleep(seconds)
    noted("end", label, ctx.task_id)
    return str(label)


@aq.step(pool="critical")
async def body(ctx: Context, outcomes: list[Ok[str] | Err]) -> list[str]:
    labels = [one.value for one in outcomes if isinstance(one, Ok)]
    prefix = labels[0].rpartition(".")[0] if labels else ctx.run_id
    noted("begin", f"{prefix}.body", ctx.task_id)
    noted("end", f"{prefix}.body", ctx.task_id)
    return labels


fan = aq.flow("fan", plan >> each(member) >> body)


@aq.step(retries=3, backoff="200ms")
async def unsteady(ctx: Context, spec: list[Any]) -> str:
    label, failures = spec
    noted("begin", label, ctx.task_id)
    if ctx.attempt <= failures:
        noted("fail", label, ctx.task_id)
        raise ConnectionError(f"attempt {ctx.attempt}")
    noted("end", label, ctx.task_id)
    return str(label)


again = aq.flow("again", unsteady)


def _first(label: str) -> bool:
    with suppress(FileExistsError):
        Path(f"{os.environ[VARIABLE]}.{label}").touch(exist_ok=False)
        return True
    return False


def _die(label: str) -> None:
    whom = os.environ.get(DIE_AFTER)
    if whom and label.endswith(".die") and _first(label):
        noted("died", label, "-")
        if whom == "worker":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


@signals.task_success.connect(weak=False)
def _stored(result: Any = None, **_: Any) -> None:
    if isinstance(result, str):
        _die(result)
