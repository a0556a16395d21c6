"""Ordinary Celery tasks that note what they did."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from celery import chain, chord, group
from celery.exceptions import Ignore, Reject
from pydantic import BaseModel

from agentq import AgentQ
from tests.support.ledger import VARIABLE, note

aq = AgentQ("canvas")
app = aq.celery
# Not shared: a test session imports this module more than once, each time with an app of its own.
task = partial(app.task, shared=False)


@task
def add(x: int, y: int) -> int:
    note(f"add {x} {y}")
    return x + y


@task
def number(value: int) -> int:
    return value


@task
def total(numbers: list[int]) -> int:
    note(f"total {len(numbers)}")
    return sum(numbers)


@task
def same(value: Any) -> Any:
    note("same")
    return value


@task
def fail(message: str = "wrong") -> None:
    note(f"fail {message}")
    raise ValueError(message)


@task
def failed(task_id: str) -> None:
    note(f"failed {task_id}")


@task
def failed_with(request: Any, error: Exception, _traceback: Any) -> None:
    note(f"failed_with {request.id} {type(error).__name__}")


@task
def noted(value: Any) -> None:
    note(f"noted {value}")


@task(bind=True, max_retries=3, default_retry_delay=0)
def twice_then(self: Any, value: int) -> int:
    note(f"attempt {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return value


@task(bind=True, max_retries=2, ignore_result=True)
def forgetful(self: Any) -> None:
    note(f"forgetful {self.request.retries}")
    if self.request.retries < 1:
        raise self.retry(countdown=0)


@task(autoretry_for=(ValueError,), retry_backoff=0, default_retry_delay=0, max_retries=2)
def never_right() -> None:
    note("never_right")
    raise ValueError("never")


@task(bind=True)
def replaced(self: Any, value: int) -> Any:
    note("replaced")
    return self.replace(chain(number.si(value), add.s(1)))


@task(bind=True)
def fanned(self: Any, count: int) -> Any:
    return self.replace(chord([number.si(i) for i in range(count)], total.s()))


@task
def ignored() -> None:
    note("ignored")
    raise Ignore


@task(bind=True)
def rejected(self: Any, *, requeue: bool) -> str:
    mark = Path(f"{os.environ[VARIABLE]}.{self.request.id}")
    redelivered = mark.exists()
    note(f"rejected {redelivered}")
    if redelivered:
        return "second time"
    mark.touch()
    raise Reject("not now", requeue=requeue)


@task(acks_late=False)
def early(x: int) -> int:
    return x


@task
async def coroutine(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


@task
def moment() -> datetime:
    return datetime.fromisoformat("2026-01-02T03:04:05+00:00")


class Point(BaseModel):
    x: int
    y: int


@task(pydantic=True)
def mirrored(point: Point) -> Point:
    return Point(x=point.y, y=point.x)


@task
def wait_for(path: str) -> str:
    note(f"waiting {os.getpid()}")
    deadline = time.monotonic() + 20
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return "done"


@task
def fatal() -> None:
    note("fatal")
    os.kill(os.getpid(), 9)


@task
def spawn(count: int) -> list[Any]:
    """Publish a group from inside a task; returns its id and its members' ids."""
    result = group(number.si(i) for i in range(count)).apply_async()
    return [result.id, [child.id for child in result.children]]


@task
def at() -> float:
    return time.time()


@task
def said(message: str, times: int = 1) -> str:
    note(f"said {message} {times}")
    return message


@task
async def countdown(left: int) -> int:
    """Call itself as a function."""
    return 0 if left == 0 else 1 + await countdown(left - 1)
