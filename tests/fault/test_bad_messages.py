"""Messages that are none, many at once, and what becomes of their runs; row 18 has each alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from agentq.errors import RunFailed
from tests.fault.scenarios.messages import BAD, GOOD_BODY, PLACE, head
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def app(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    ledger = Ledger(tmp_path_factory.mktemp("bad") / "ledger")
    with running("tests.support.apps.matrix", url, ledger, WORKER__POLL="200ms") as app:
        app.worker()  # it polls often: nobody wakes it for what is added by hand
        yield app


def add(app: Running, fields: dict[str, Any]) -> str:
    store = app.app.aq.store
    flat = [part for pair in fields.items() for part in pair]
    return str(store.command("XADD", store.keys.stream("shared", "normal"), "*", *flat).decode())


def dead_letters(app: Running) -> list[dict[bytes, bytes]]:
    store = app.app.aq.store
    return [fields for _, fields in store.command("XRANGE", store.keys.dead(), "-", "+")]


def run_one(app: Running) -> float:
    """Run a good task; return how long it took from being submitted."""
    began = time.monotonic()
    assert app.app.work.delay("good").get(timeout=10) == "good"
    return time.monotonic() - began


def queued(app: Running) -> int:
    store = app.app.aq.store
    streams = (store.keys.stream("shared", "normal"), store.keys.returned("shared", "normal"))
    return sum(store.command("XLEN", stream) for stream in streams)


def test_counters_that_are_none_count_as_nothing(app: Running) -> None:
    add(app, {"i": "x", "r": "", "j": "", "h": head(id="odd"), "b": GOOD_BODY,
              "a": "many", "n": "-1", "t": "now"})  # fmt: skip
    wait_until(lambda: app.ledger.lines("begin odd "), "the message runs")


def test_many_bad_messages_at_once_do_not_stop_the_worker(app: Running) -> None:
    before = len(dead_letters(app))
    for fields in list(BAD.values()) * 5:
        if len(fields.get("h", b"")) < 1000 and len(fields.get("b", b"")) < 1000:
            add(app, {"i": "", "r": "", "j": "", **fields})
    assert run_one(app) < 1
    wait_until(lambda: queued(app) == 0, "all are ended")
    assert len(dead_letters(app)) > before + 100


def test_a_run_whose_message_is_bad_fails_and_says_why(app: Running) -> None:
    store = app.app.aq.store
    run = uuid4().hex
    key = store.keys.run(run)
    store.command(
        "HSET", key, "state", "running", "at", 1, "deadline", 0, "record", '{"flow":"fan"}'
    )
    add(app, {"i": "x", "r": run, "j": "", "h": b"hello", "b": GOOD_BODY})
    with pytest.raises(RunFailed, match="Malformed: no message: JSONDecodeError"):
        app.app.aq.run(run).result(timeout=5)


def test_a_step_at_a_place_that_its_flow_does_not_have_waits_for_another_worker(
    app: Running,
) -> None:
    store = app.app.aq.store
    before = len(dead_letters(app))
    add(app, {"i": "newer", "r": "", "j": "", "h": head(aq={**PLACE, "node": 99}), "b": GOOD_BODY})
    delayed = f"{store.keys.delayed()}:m"
    wait_until(lambda: store.command("HEXISTS", delayed, "newer#0"), "it is parked")
    assert run_one(app) < 1
    assert len(dead_letters(app)) == before
