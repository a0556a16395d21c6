"""Gives Celery's integration tests an app of ours: `pytest -p tests.contract.celery_canvas_plugin`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import celery.contrib.pytest
import celery.contrib.testing.tasks
from celery.contrib.testing.app import setup_default_app

from agentq import AgentQ
from agentq.broker import routing
from agentq.broker.app import CeleryApp

_QUEUE = "celery"
_OURS = {"broker_url", "result_backend", "task_create_missing_queues"}


@contextmanager
def create_app(
    *, enable_logging: bool = False, use_trap: bool = False, parameters: Any = None, **config: Any  # noqa: ARG001 -- Celery's fixture gives them
) -> Iterator[CeleryApp]:  # fmt: skip
    """Stand in for Celery's own, which makes an app on the configured broker."""
    app = AgentQ("celery-tests", overrides={"worker.stock_pool": "prefork"}).celery
    # They insist on one queue of this name.
    app.conf.task_queues = routing.queues([_QUEUE])
    app.conf.task_default_queue = app.conf.task_default_routing_key = _QUEUE
    app.conf.update({key: value for key, value in config.items() if key not in _OURS})
    # They skip what needs Redis by the setting's text; the backend is ours all the same.
    app.conf.result_backend = "redis://"
    app.backend_cls = "agentq.broker.backend:Backend"
    with setup_default_app(app, use_trap=use_trap):
        yield app


celery.contrib.pytest._create_app = create_app  # noqa: SLF001 -- its fixtures offer no other way
