"""Celery's worker, with our loop for a consumer where our pool was chosen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from celery.apps.worker import Worker as CeleryWorker
from celery.concurrency import get_implementation

from agentq.broker.warming import places
from agentq.host.plan import Process
from agentq.host.planner import LEAST_THREADS
from agentq.worker.pool import TaskPool
from agentq.worker.processes import Processes


class Worker(CeleryWorker):  # type: ignore[misc]
    """What `celery worker` and `agentq worker` start."""

    seat: Process | None = None
    """What the plan of this machine has for it; None: it was started without one."""

    def on_before_init(self, *, seat: Process | None = None, **kwargs: Any) -> None:
        """Choose the consumer before Celery puts the worker together."""
        super().on_before_init(**kwargs)
        self.seat = seat
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

    def take_seat(self, seat: Process) -> None:
        """Go over to what *seat* has for a process that runs; from a signal's handler."""
        self.seat = seat
        self.consumer.call_threadsafe(self.consumer.take_seat, seat)

    def thread_count(self) -> int:
        """Return how many steps written as plain def run at once."""
        threads = self.app.aq.settings.worker.threads
        return int(threads or (self.seat.threads if self.seat else LEAST_THREADS))

    def new_processes(self) -> Processes:
        """Return the processes for steps of kind="cpu"; none where no step is."""
        aq = self.app.aq
        modules = {step.function.__module__ for step in aq.steps.values() if step.kind == "cpu"}
        return Processes(
            cores=self._child_cores() if modules else (), modules=sorted(modules),
            warmers=places(aq.warmers), spare=aq.settings.worker.spare,
        )  # fmt: skip

    def _child_cores(self) -> Sequence[tuple[int, ...]]:
        if self.seat is not None:
            return self.seat.children
        allowed = sorted(os.sched_getaffinity(0))
        count = self.app.aq.settings.worker.cpu_processes or len(allowed)
        return [(allowed[slot % len(allowed)],) for slot in range(count)]
