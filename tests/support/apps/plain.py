"""An ordinary Celery app that knows of agentq only what its URLs say."""

from __future__ import annotations

import os
import signal
import sys

from celery import Celery

import agentq  # noqa: F401 -- makes the URLs known
from tests.support.ledger import note

_URL = os.environ["AGENTQ_BROKER__URL"]

app = Celery("plain", broker=_URL, backend=_URL)
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1
app.conf.worker_lost_wait = 1  # prefork looks for 10 s whether a dead child has left a result


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def fail() -> None:
    raise ValueError("wrong")


@app.task(acks_late=False)
def early(number: int) -> None:
    note("ran", number)


@app.task
def late(number: int) -> None:
    note("ran", number)


@app.task(reject_on_worker_lost=True)
def dies(how: str) -> None:
    """End the process that runs it."""
    note("dies", how)
    if how == "exit":
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)
