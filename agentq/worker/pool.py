"""The pool that Celery's worker shows for our loop: slots instead of processes.

The loop runs the work itself; this tells `inspect stats`, Flower and the start-up banner how much
of it fits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from celery.concurrency.base import BasePool


class TaskPool(BasePool):  # type: ignore[misc]
    """`worker_pool = "agentq.worker.pool:TaskPool"`."""

    is_green = True  # one thread runs many tasks, as Celery means it
    signal_safe = True
    task_join_will_block = True  # `get()` in a task would stop the loop: Celery refuses it
    body_can_be_buffer = True

    @property
    def slots(self) -> int:
        """Return how many async steps run at once."""
        return int(self.limit)

    @property
    def num_processes(self) -> int:
        """Return the slots, which Celery calls processes."""
        return self.slots

    def on_start(self) -> None:
        """Do nothing: the loop starts what it needs."""

    def on_stop(self) -> None:
        """Do nothing."""

    def on_terminate(self) -> None:
        """Do nothing."""

    def spawn_n(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run *target* in a thread of its own."""
        threading.Thread(target=target, args=args, kwargs=kwargs, daemon=True).start()

    def _get_info(self) -> dict[str, Any]:
        return {
            **super()._get_info(),
            "implementation": "agentq asyncio loop",
            "max-concurrency": self.slots,
            "processes": [os.getpid()],
        }
