"""The steps that are measured, as plain Celery tasks: results stored, acks late, Redis lists.

This module and what it imports must not load agentq's broker: plain Celery is measured plain.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from celery import Celery

from agentq.ops.bench.ledger import Ledger, Mark

URL_VARIABLE = "BENCH_AGENTQ_CELERY_URL"
PREFETCH_VARIABLE = "BENCH_AGENTQ_PREFETCH"
PIPELINE_STEP_S = 0.05

ledger = Ledger.from_environment()
app = Celery("bench", broker=os.environ[URL_VARIABLE], backend=os.environ[URL_VARIABLE])
# What Celery's own guide recommends for work that must not be lost, and nothing that slows it.
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=int(os.environ.get(PREFETCH_VARIABLE, "4")),
    result_expires=3600,
    task_serializer="json",
    broker_transport_options={"visibility_timeout": 3600},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=3,  # a worker whose benchmark was killed ends with its server
    worker_send_task_events=False,
    task_send_sent_event=False,
    worker_hijack_root_logger=False,
)


def _task(function: Callable[..., object]) -> Any:
    return app.task(function)


@_task
def noop(payload: dict[str, Any]) -> None:  # noqa: ARG001 - it is carried, not read
    """Do nothing, and be counted."""
    ledger.tick()


@_task
def stamp(payload: dict[str, Any]) -> float:  # noqa: ARG001
    """Return when it started."""
    return time.monotonic()


@_task
def sleeper(seconds: float) -> None:
    """Wait as a model call would."""
    time.sleep(seconds)
    ledger.tick()


@_task
def child(index: int) -> int:
    """Be one member of a fan-out."""
    ledger.tick()
    return index


@_task
def final(results: list[int]) -> int:
    """Be the body of a fan-in."""
    ledger.tick(Mark.JOIN)
    return len(results)


@_task
def plan() -> None:
    """Start a pipeline."""
    time.sleep(PIPELINE_STEP_S)


@_task
def execute(index: int) -> int:
    """Be one of a pipeline's parallel steps."""
    time.sleep(PIPELINE_STEP_S)
    return index


@_task
def review(results: list[int]) -> None:  # noqa: ARG001
    """End a pipeline."""
    time.sleep(PIPELINE_STEP_S)
    ledger.tick(Mark.REVIEW)
