"""An ordinary Celery app that knows of agentq only what its URLs say."""

from __future__ import annotations

import os

from celery import Celery

import agentq  # noqa: F401 -- makes the URLs known

_URL = os.environ["AGENTQ_BROKER__URL"]

app = Celery("plain", broker=_URL, backend=_URL)
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def fail() -> None:
    raise ValueError("wrong")
