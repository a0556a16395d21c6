"""A server without memory: new work is refused whole, and what has been accepted gets through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from celery import chord, group

from agentq.errors import BrokerUnavailable, QueueFull
from tests.fault.scenarios.ground import Ground, ground
from tests.fault.scenarios.row import Row
from tests.fault.scenarios.servers import LEASE_S

_MEMBERS = 80
_PADDING = "x" * 100_000


@contextmanager
def without_memory(here: Ground, left: int = 0) -> Iterator[None]:
    """Leave the server *left* bytes; 0: none at all."""
    most = int(here.redis.info("memory")["used_memory"]) + left if left else 1
    here.redis.config_set("maxmemory", most)
    try:
        yield
    finally:
        here.redis.config_set("maxmemory", 0)


def producer(trials: int, *, kind: str) -> list[Row]:
    """Submit groups and chords of 8 MB to a server that has room for half of one."""
    parts = 0
    with ground() as here:
        for _ in range(trials):
            for shape in (_group, _chord):
                label = uuid4().hex[:12]
                with without_memory(here, left=4_000_000):
                    _refused(lambda shape=shape, label=label: shape(here.app, label))  # type: ignore[misc]
        here.worker(kind)
        here.answers()
        begun = [x for x in here.lines("begin ") if "." in x.label]
        parts = len(begun)
        lost, doubled = here.ended(workers=1)
    what = f"full Redis, groups and chords of {_MEMBERS} submitted, {kind}"
    return [
        Row(
            15,
            what,
            2 * trials,
            lost,
            doubled + parts,
            None,
            f"{parts} members of refused ones ran",
        )
    ]


def _header(app: Any, label: str) -> list[Any]:
    return [app.padded.s(f"{label}.{number}", _PADDING) for number in range(_MEMBERS)]


def _group(app: Any, label: str) -> None:
    group(_header(app, label)).apply_async()


def _chord(app: Any, label: str) -> None:
    chord(_header(app, label))(app.total.s(f"{label}.body"))


def _refused(submit: Callable[[], None]) -> None:
    try:
        submit()
    except (BrokerUnavailable, QueueFull):
        return
    raise AssertionError("a full server took 8 MB")


def worker_at_work(trials: int, *, kind: str, seconds: float) -> list[Row]:
    """Take all memory away while runs go on: they end, and new ones are refused."""
    slowest = 0.0
    with ground(lease=LEASE_S) as here:
        worker = here.worker(kind)
        for _ in range(trials):
            ended = len(here.lines("end "))
            here.submit(40, 0.05)
            here.send(20, 0.05)
            here.until("end", ended + 5)
            with without_memory(here):
                _refused(lambda: here.app.fan.submit(["no", 1, 0.0]))
                here.until("end", ended + 62)
                time.sleep(seconds)  # the worker has nothing to do and no memory
            slowest = max(slowest, here.answers())
        assert worker.alive()
        lost, doubled = here.ended(workers=1)
    note = "all that was accepted ended while it was full"
    what = f"full Redis for {seconds:g} s and more, worker at work, {kind}"
    return [Row(16, what, trials, lost, doubled, slowest, note)]


def fetch(trials: int, *, kind: str, tasks: int = 40) -> list[Row]:
    """Start a worker on a server that is full, and let it take what waits there."""
    with ground(lease=LEASE_S) as here:
        for _ in range(trials):
            ended = len(here.lines("end "))
            here.send(tasks, 0.01)
            with without_memory(here):
                worker = here.worker(kind)
                here.until("end", ended + tasks)
                worker.stop()
        lost, doubled = here.ended(workers=0)
    note = "started, fetched, ended and stopped while it was full"
    return [Row(17, f"full Redis, fetch, {kind}", trials * tasks, lost, doubled, None, note)]
