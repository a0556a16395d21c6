"""Celery's worker, with our loop for a consumer where our pool was chosen."""

from __future__ import annotations

from typing import Any

from celery.apps.worker import Worker as CeleryWorker
from celery.concurrency import get_implementation

from agentq.worker.pool import TaskPool


class Worker(CeleryWorker):  # type: ignore[misc]
    """What `celery worker` and `agentq worker` start."""

    def on_before_init(self, **kwargs: Any) -> None:
        """Choose the consumer before Celery puts the worker together."""
        super().on_before_init(**kwargs)
        chosen = kwargs.get("pool_cls") or kwargs.get("pool") or self.app.conf.worker_pool
        self.ours = get_implementation(chosen) is TaskPool

    def setup_defaults(self, concurrency: Any = None, **kwargs: Any) -> None:
        """Take the slots for concurrency, and our loop for consumer, under our pool."""
        if self.ours:
            concurrency = concurrency or self.app.aq.settings.worker.slots
            kwargs["consumer_cls"] = "agentq.worker.loop:Loop"
        super().setup_defaults(concurrency=concurrency, **kwargs)

    def setup_instance(self, *args: Any, use_eventloop: bool | None = None, **kwargs: Any) -> None:
        """Run without kombu's hub under our pool: the loop is asyncio's."""
        super().setup_instance(*args, use_eventloop=False if self.ours else use_eventloop, **kwargs)
