"""Ordinary Celery tasks, `async def` and `def`, on our loop; hooks and signals noted in the ledger."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from celery import current_task, signals
from celery.exceptions import Ignore, Reject
from celery.result import AsyncResult

from agentq import AgentQ, Context
from tests.support.ledger import note

aq = AgentQ("coroutines")
app = aq.celery


@app.task
async def add(x: int, y: int) -> int:
    await asyncio.sleep(0)
    return x + y


@app.task
def sync_add(x: int, y: int) -> int:
    return x + y


@app.task(bind=True, max_retries=2, default_retry_delay=0.1)
async def interleaved(self: Any, name: str) -> list[Any]:
    """Yield often; note whenever the request at hand is another task's."""
    own = self.request.id
    for _ in range(20):
        await asyncio.sleep(0.005)
        if (self.request.id, current_task.request.id) != (own, own):
            note("mixed up", own, self.request.id)
    child = child_of.delay(name)
    if self.request.retries < 1:
        raise self.retry()
    return [name, own, self.request.retries, self.request.args, child.id]


@app.task(bind=True)
async def child_of(self: Any, name: str) -> None:
    note("child", name, self.request.parent_id, self.request.root_id)


@app.task(
    autoretry_for=(ConnectionError,), retry_backoff=False, default_retry_delay=0, max_retries=2
)
async def auto(failures: int) -> str:
    await asyncio.sleep(0)
    note("auto", failures)
    if len(_lines(f"auto {failures}")) <= failures:
        raise ConnectionError("not yet")
    return "through"


def _lines(beginning: str) -> list[str]:
    from pathlib import Path

    return [
        x for x in Path(os.environ["AQ_TEST_LEDGER"]).read_text().splitlines() if x == beginning
    ]


class Hooked(app.Task):  # type: ignore[name-defined,misc]
    def before_start(self, task_id: str, _args: Any, _kwargs: Any) -> None:
        note("before_start", task_id)

    def on_success(self, retval: Any, task_id: str, _args: Any, _kwargs: Any) -> None:
        note("on_success", task_id, retval)

    def on_failure(self, exc: Any, task_id: str, _args: Any, _kwargs: Any, einfo: Any) -> None:
        note("on_failure", task_id, repr(exc), einfo is not None)

    def on_retry(self, exc: Any, task_id: str, _args: Any, _kwargs: Any, _einfo: Any) -> None:
        note("on_retry", task_id, repr(exc))

    def after_return(self, status: str, _ret: Any, task_id: str, *_: Any) -> None:
        note("after_return", task_id, status)


@app.task(base=Hooked, bind=True, default_retry_delay=0)
async def hooked(self: Any, how: str) -> str:
    await asyncio.sleep(0)
    if how == "fail":
        raise ValueError("no")
    if how == "retry" and self.request.retries == 0:
        raise self.retry(exc=KeyError("again"))
    return how


@app.task(base=Hooked, bind=True, default_retry_delay=0)
def sync_hooked(self: Any, how: str) -> str:
    if how == "fail":
        raise ValueError("no")
    if how == "retry" and self.request.retries == 0:
        raise self.retry(exc=KeyError("again"))
    return how


@app.task
async def ignores() -> None:
    raise Ignore


@app.task(bind=True)
async def rejects(self: Any, *, requeue: bool) -> str:
    note("rejects", self.request.id)
    if len(_lines(f"rejects {self.request.id}")) == 1:
        raise Reject("not mine", requeue=requeue)
    return "second time"


@app.task
async def sleeps(seconds: float) -> str:
    note("sleeps", seconds)
    await asyncio.sleep(seconds)
    note("slept", seconds)
    return "slept"


@app.task(time_limit=0.2)
async def limited() -> None:
    await asyncio.sleep(30)


@app.task(soft_time_limit=0.2, time_limit=30)
async def softly_limited() -> None:
    await asyncio.sleep(30)


@app.task
async def fails(message: str) -> None:
    raise ValueError(message)


@app.task
def errback(request: Any, exc: Any, _traceback: Any) -> None:
    note("errback", request.id, type(exc).__name__)


@app.task
async def exits() -> None:
    raise SystemExit(3)


@app.task
async def own_cancel() -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


@app.task
async def kills_its_worker() -> None:
    note("kills")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def collects(values: list[int]) -> int:
    note("collects", sum(values))
    return sum(values)


@app.task
def blocks(seconds: float) -> str:
    time.sleep(seconds)
    return "blocked"


@aq.step
async def as_step(ctx: Context, number: int) -> int:
    assert ctx.run_id == ""
    return number * 2


def state_of(task_id: str) -> str:
    return str(AsyncResult(task_id, app=app).state)


@signals.task_prerun.connect
def prerun(task_id: str, task: Any, **_: Any) -> None:
    note("prerun", task_id, task.name.rpartition(".")[2])


@signals.task_postrun.connect
def postrun(task_id: str, state: str, **_: Any) -> None:
    note("postrun", task_id, state)


@signals.task_success.connect
def success(sender: Any, result: Any, **_: Any) -> None:
    note("success", sender.request.id, result)


@signals.task_failure.connect
def failure(task_id: str, exception: Any, **_: Any) -> None:
    note("failure", task_id, type(exception).__name__)


@signals.task_retry.connect
def retried(request: Any, reason: Any, **_: Any) -> None:
    note("retry", request.id, type(reason).__name__)


@signals.task_revoked.connect
def revoked(request: Any, terminated: bool, expired: bool, **_: Any) -> None:  # noqa: FBT001
    note("revoked", request.id, terminated, expired)
