"""Threads that call a blob store, and hold up no process that ends while the store hangs.

`ThreadPoolExecutor` joins its threads when the interpreter exits, and offers no way not to.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

Job = tuple[Future[Any], Callable[..., Any], tuple[object, ...]]


class Threads:
    """At most *count*, begun as they are needed; they end with this object, or with the process."""

    def __init__(self, *, count: int) -> None:
        """Keep the number; no thread runs yet."""
        self._count = count
        self._begun = 0
        self._lock = threading.Lock()
        self._idle = threading.Semaphore(0)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def start(self, function: Callable[..., T], *args: object) -> Future[T]:
        """Call *function* in a thread as soon as one is free."""
        future: Future[T] = Future()
        self._jobs.put((future, function, args))
        if not self._idle.acquire(blocking=False):
            self._begin()
        return future

    def _begin(self) -> None:
        with self._lock:
            if self._begun == self._count:
                return
            self._begun += 1
            threading.Thread(
                target=_work,
                args=(self._jobs, self._idle),
                name=f"agentq-blobs-{self._begun}",
                daemon=True,
            ).start()


def _work(jobs: SimpleQueue[Job | None], idle: threading.Semaphore) -> None:
    while (job := jobs.get()) is not None:
        _do(*job)
        del job  # what it returned is kept by who waits for it alone
        idle.release()
    jobs.put(None)  # for the next


def _do(future: Future[Any], function: Callable[..., Any], args: tuple[object, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(*args))
    except BaseException as error:  # noqa: BLE001 -- who waits gets it, and the thread goes on
        future.set_exception(error)
