"""Links that are cut, silent, or lose what had been answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

from agentq.errors import BrokerUnavailable
from tests.fault.scenarios.ground import Ground, ground, now, on_server
from tests.fault.scenarios.row import Row
from tests.fault.scenarios.servers import LEASE_S
from tests.support.proxy import Proxy, proxy_to
from tests.support.redis_server import private_server
from tests.support.waiting import wait_until

T = TypeVar("T")

_PRODUCERS = 4


@contextmanager
def linked(**settings: Any) -> Iterator[tuple[Ground, Proxy]]:
    """Set a ground up whose app and workers reach their server by a link that may be broken."""
    with (
        private_server(appendfsync="always") as server,
        proxy_to(server.embedded.socket_path) as link,
        on_server(server, url=link.url, **settings) as here,
    ):
        yield here, link


def eventually(ask: Callable[[], T]) -> T:
    """Return the answer of *ask*, asked again as long as the broker is unavailable."""
    answers: list[T] = []

    def answered() -> bool:
        try:
            answers.append(ask())
        except BrokerUnavailable:
            return False
        return True

    wait_until(answered, "the broker answers")
    return answers[0]


def killed(trials: int, *, kind: str) -> list[Row]:
    """Kill all clients of the server, again and again, while runs are submitted and go on."""
    slowest = 0.0
    with ground(lease=LEASE_S) as here:
        workers = [here.worker(kind), here.worker(kind)]
        for trial in range(trials):
            ended = len(here.lines("end "))
            eventually(lambda trial=trial: here.submit(20, 0.05, key=f"run{trial}"))  # type: ignore[misc]
            here.until("end", ended + 5)
            here.redis.client_kill_filter(_type="pubsub", skipme=True)
            here.redis.client_kill_filter(_type="normal", skipme=True)
            eventually(lambda trial=trial: here.submit(20, 0.05, key=f"run{trial}"))  # type: ignore[misc]
            slowest = max(slowest, here.answers())
        assert all(worker.alive() for worker in workers)
        lost, doubled = here.ended(workers=2)
    note = "each key submitted twice"
    return [Row(6, f"CLIENT KILL of all, {kind}", trials, lost, doubled, slowest, note)]


def publish_reply_lost(trials: int) -> list[Row]:
    """Lose half of the replies to submits; each is sent again with its id until it is answered."""
    with linked(BROKER__TIMEOUT="2s") as (here, link):
        link.share, link.losing = 0.5, b"aq1_enqueue"
        labels = [uuid4().hex[:12] for _ in range(trials)]

        def send(label: str) -> int:
            refused = 0
            while True:
                try:
                    here.app.work.apply_async((label, 0.0), task_id=label)
                except BrokerUnavailable:
                    refused += 1
                else:
                    return refused

        with ThreadPoolExecutor(_PRODUCERS) as producers:
            refused = sum(producers.map(send, labels))
        link.losing = b""
        for label in labels:
            here.expect(label, label)
        queued = sum(here.server.streams(here.cell).values())
        here.worker()
        lost, doubled = here.ended(workers=1)
        doubled += max(0, queued - trials)
    note = f"{link.lost} replies lost, {refused} submits refused and sent again"
    return [Row(21, "reply to a submit lost", trials, lost, doubled, None, note)]


def black_hole(trials: int, *, seconds: float, kind: str) -> list[Row]:
    """Pass nothing on for a while, and cut all links at the end of it."""
    slowest = 0.0
    with linked(lease=LEASE_S, BROKER__TIMEOUT="2s") as (here, link):
        workers = [here.worker(kind), here.worker(kind)]
        for _ in range(trials):
            begun = len(here.lines("begin "))
            here.submit(40, 0.1)
            here.until("begin", begun + 8)
            with link.silent():
                time.sleep(seconds)  # that nothing passes, and nothing else, is the fault
                link.cut()
            slowest = max(slowest, eventually(here.answers))
        assert all(worker.alive() for worker in workers)
        lost, doubled = here.ended(workers=2)
    note = "all links: leases do not run while nobody can renew them"
    return [
        Row(
            22,
            f"black hole for {seconds:g} s, then cut, {kind}",
            trials,
            lost,
            doubled,
            slowest,
            note,
        )
    ]


def reply_lost(trials: int, *, function: str, kind: str) -> list[Row]:
    """Cut a worker's links before it reads the reply to a fetch or a completion."""
    slowest = 0.0
    with linked(lease=LEASE_S) as (here, link):
        worker = here.worker(kind)
        for _ in range(trials):
            lost_before = link.lost
            link.losing = f"aq1_{function}".encode()
            began = now()
            labels = set(here.send(10, 0.05))
            wait_until(lambda before=lost_before: link.lost > before, "a reply is lost")  # type: ignore[misc]
            link.losing = b""
            slowest = max(slowest, here.again_after(began, labels))
        assert worker.alive()
        lost, doubled = here.ended(workers=1)
    note = f"{link.lost} replies lost, lease {LEASE_S:g} s"
    what = f"link cut before the reply to {function} is read, {kind}"
    return [Row(31, what, trials, lost, doubled, slowest, note)]
