"""Warming up Celery's pool of threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from agentq.worker.stock import in_each


def test_what_is_done_in_each_thread_is_done_once_in_each_however_short_it_is() -> None:
    done: list[int] = []
    with ThreadPoolExecutor(8) as executor:
        in_each(executor, 8, lambda: done.append(threading.get_ident()))
    assert len(done) == len(set(done)) == 8
