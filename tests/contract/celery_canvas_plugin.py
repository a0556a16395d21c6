"""Gives Celery's integration tests an app of ours: `pytest -p tests.contract.celery_canvas_plugin`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import celery.contrib.pytest
from celery.contrib.testing.app import setup_default_app

from agentq import AgentQ, load_settings
from agentq.broker.app import CeleryApp

_OURS = {"broker_url", "result_backend", "task_create_missing_queues"}


@contextmanager
def create_app(
    *, enable_logging: bool = False, use_trap: bool = False, parameters: Any = None, **config: Any  # noqa: ARG001 -- Celery's fixture gives them
) -> Iterator[CeleryApp]:  # fmt: skip
    """Stand in for Celery's own, which makes an app on the configured broker."""
    settings = load_settings(
        overrides={
            # Celery's tests insist on one queue of this name.
            "pools": {"celery": {"purpose": "shared", "processes": 1}},
            "worker.stock_pool": "prefork",
        }
    )
    app = AgentQ("celery-tests", settings=settings).celery
    app.conf.update({key: value for key, value in config.items() if key not in _OURS})
    # They skip what needs Redis by the setting's text; the backend is ours all the same.
    app.conf.result_backend = "redis://"
    app.backend_cls = "agentq.broker.backend:Backend"
    with setup_default_app(app, use_trap=use_trap):
        yield app


celery.contrib.pytest._create_app = create_app  # noqa: SLF001 -- its fixtures offer no other way
