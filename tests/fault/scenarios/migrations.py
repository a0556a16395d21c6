"""`agentq migrate` that dies at its function calls, between its own Redis and the stock Celery's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import redis
from celery import Celery

from agentq.store import calls
from tests.fault.scenarios.function_points import once
from tests.support.play import Play, Scenario

COUNT = 5
_DB = 1
"""Where the stock Celery's lists are."""
_GAP_MS = 3_600_000


@contextmanager
def stock_redis(play: Play) -> Iterator[redis.Redis]:
    """Give the stock Celery's Redis, empty."""
    path = str(play.server.embedded.socket_path)
    with redis.Redis(unix_socket_path=path, db=_DB) as lists:
        lists.flushdb()
        yield lists


def command(play: Play, way: str) -> tuple[str, ...]:
    return ("migrate", f"unix://{play.server.embedded.socket_path}?db={_DB}", way)


def coming(play: Play, point: str) -> None:
    """It dies as it puts what waited there into our queues."""
    with stock_redis(play):
        url = f"redis+socket://{play.server.embedded.socket_path}?virtual_host={_DB}"
        stock = Celery("stock", broker=url, set_as_current=False)
        for number in range(COUNT):
            stock.send_task("points.counted", (number,), ignore_result=True)
        stock.close()
        play.command(*command(play, "--from"), crash=f"{point}:3")
        play.command(*command(play, "--from"))
    play.go_on()
    assert play.ran("counted") == once(COUNT)


def going(play: Play, point: str) -> None:
    """It dies as it takes from our queues what is to go there, at the third of several calls."""
    with stock_redis(play) as lists:
        play.producer(f"send_group(aq, {COUNT}, {point!r})")
        call = 3 if point.endswith("-complete") else 1
        play.command(*command(play, "--to"), crash=f"{point}:{call}")
        bury(play)
        play.command(*command(play, "--to"))
        messages = [
            one for key in lists.scan_iter(_type="list") for one in lists.lrange(key, 0, -1)
        ]
        ids = sorted(orjson.loads(message)["headers"]["id"] for message in messages)
    assert ids == [f"{point} {number}" for number in range(COUNT)]


def bury(play: Play) -> None:
    """Let the lease of a dead move run out now, a minute before its time, and hand out what it had."""
    store = play.aq.store
    for worker in store.command("ZRANGE", store.keys.workers(), 0, -1):
        if worker.startswith(b"migrate#"):
            store.command("ZADD", store.keys.workers(), 1, worker)
    while store.call(calls.reap(store.keys.prefix, 3, _GAP_MS, 1000))[1]:
        pass


SCENARIOS: dict[str, Scenario] = {
    "enqueue": coming,
    "renew": going,
    "fetch": going,
    "complete": going,
    "release": going,
}
"""By the function at which it dies."""
