"""Threads for `def` steps and tasks, and how many of them are really free.

A thread can not be ended: when its step ran into a time limit or was cancelled, the step's run goes
on without it and the thread stays in use until the function returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentq.errors import LimitReached
from agentq.host.limits import fullest
from agentq.worker.contained import guarded

logger = logging.getLogger(__name__)


class Threads:
    """A bounded pool; a thread is started by `start`, or when the first call needs it."""

    def __init__(self, *, count: int) -> None:
        """Take how many functions may run at the same time."""
        self.count = count
        self.used = 0
        """Functions that run or wait, abandoned ones included."""
        self._free = asyncio.Semaphore(count)
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="agentq-step")

    def start(self) -> None:
        """Start all of them, so that no step meets the system's limit on threads; fewer if it is.

        Raises:
            LimitReached: not even one could be started.
        """
        go = threading.Event()
        started = 0
        try:
            for _ in range(self.count):
                self._executor.submit(go.wait)
                started += 1
        except RuntimeError as error:
            self._start_fewer(started, error)
        finally:
            go.set()

    def _start_fewer(self, started: int, error: RuntimeError) -> None:
        limit = fullest(error)
        if not started:
            raise LimitReached(f"no thread can be started for def steps: {limit}") from error
        logger.warning("%d of %d threads for def steps: %s", started, self.count, limit)
        self.count = self._executor._max_workers = started  # noqa: SLF001 -- it would try again
        self._free = asyncio.Semaphore(started)

    async def run(
        self, function: Callable[..., Any], *args: Any, begins: Callable[[], None] | None = None
    ) -> Any:
        """Return what *function* returns; cancelled, it runs on and its result is dropped.

        *begins* is called when there is a thread for it: a wait is not the function's time.
        """
        self.used += 1
        try:
            await self._free.acquire()
        except asyncio.CancelledError:
            self.used -= 1
            raise
        if begins is not None:
            begins()
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(
            self._executor, context.run, guarded, function, *args
        )
        future.add_done_callback(self._freed)
        # Shielded: a cancelled future counts as done while its thread still runs.
        return await asyncio.shield(future)

    def stop(self) -> None:
        """Start nothing more; what runs is left to run. Safe twice."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _freed(self, future: asyncio.Future[Any]) -> None:
        self.used -= 1
        self._free.release()
        if not future.cancelled():
            future.exception()  # read, so that an abandoned one's error is no "never retrieved"
