"""Messages that are none, put into a queue by hand: kept for a human, and the next good one runs."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import orjson
import pytest

from agentq.errors import RunFailed
from tests.support.ledger import Ledger, note
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until

TASK = "tests.support.apps.faults.quick"
DEEP = b"[" * 100_000
HUGE = b"x" * 8_000_000
PLACE = {"v": 1, "run": "r", "flow": "one", "node": 0, "path": []}


class Trap:
    """Notes that it was unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (note, ("trapped",))


def head(properties: Any = None, content_type: Any = "application/json", **headers: Any) -> bytes:
    return orjson.dumps(
        {
            "headers": {"task": TASK, "id": "bad", **headers},
            "properties": {} if properties is None else properties,
            "content-type": content_type,
            "content-encoding": "utf-8",
        }
    )


GOOD_BODY = b"[[5],{},null]"

BAD = {
    "no field of ours": {"x": "y"},
    "an empty head": {"i": "bad", "h": b"", "b": GOOD_BODY},
    "no JSON": {"h": b"hello", "b": GOOD_BODY},
    "no text": {"h": b"\xff\xfe\x00", "b": b"\xff"},
    "a list": {"h": b"[]", "b": GOOD_BODY},
    "null": {"h": b"null", "b": GOOD_BODY},
    "an empty object": {"h": b"{}", "b": GOOD_BODY},
    "headers that are a list": {"h": b'{"headers":[],"properties":{}}', "b": GOOD_BODY},
    "headers that are text": {"h": b'{"headers":"task","properties":{}}', "b": GOOD_BODY},
    "deep nesting": {"h": DEEP, "b": GOOD_BODY},
    "a huge head": {"h": HUGE, "b": GOOD_BODY},
    "a number for a task": {"h": head(task=5), "b": GOOD_BODY},
    "properties that are text": {"h": head(properties="p"), "b": GOOD_BODY},
    "delivery info that is a list": {"h": head(properties={"delivery_info": [1]}), "b": GOOD_BODY},
    "header aq a list": {"h": head(aq=["flow"]), "b": GOOD_BODY},
    "a flow without a place": {"h": head(aq={"flow": "one"}), "b": GOOD_BODY},
    "a flow that is a list": {"h": head(aq={**PLACE, "flow": ["one"]}), "b": GOOD_BODY},
    "a node that is text": {"h": head(aq={**PLACE, "node": "0"}), "b": GOOD_BODY},
    "a path that is none": {"h": head(aq={**PLACE, "path": [[1, "j"]]}), "b": GOOD_BODY},
    "retries that are text": {"h": head(retries="many"), "b": GOOD_BODY},
    "an expiry that is no date": {"h": head(expires="yesterday"), "b": GOOD_BODY},
    "one time limit": {"h": head(timelimit=5), "b": GOOD_BODY},
    "three time limits": {"h": head(timelimit=[1, 2, 3]), "b": GOOD_BODY},
    "an unknown compression": {"h": head(compression="squeeze"), "b": GOOD_BODY},
    "a content type that is a list": {"h": head(content_type=["x"]), "b": GOOD_BODY},
    "pickle": {"h": head(content_type="application/x-python-serialize"), "b": pickle.dumps(Trap())},
    "no body": {"h": head()},
    "a body that is no JSON": {"h": head(), "b": b"hello"},
    "a deep body": {"h": head(), "b": DEEP},
    "a huge body": {"h": head(), "b": HUGE},
    "a body that is an object": {"h": head(), "b": b"{}"},
    "a body of two": {"h": head(), "b": b"[[],{}]"},
    "args that are text": {"h": head(), "b": b'["ab",{},null]'},
    "kwargs that are a list": {"h": head(), "b": b"[[1],[],null]"},
    "an embed that is a number": {"h": head(), "b": b"[[1],{},5]"},
}


@pytest.fixture(scope="module")
def app(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    ledger = Ledger(tmp_path_factory.mktemp("bad") / "ledger")
    with running("tests.support.apps.faults", url, ledger, WORKER__POLL="200ms") as app:
        app.worker()  # it polls often: nobody wakes it for what is added by hand
        yield app


def add(app: Running, fields: dict[str, Any]) -> str:
    store = app.app.aq.store
    flat = [part for pair in fields.items() for part in pair]
    return str(store.command("XADD", store.keys.stream("shared", "normal"), "*", *flat).decode())


def dead_letters(app: Running) -> list[dict[bytes, bytes]]:
    store = app.app.aq.store
    return [fields for _, fields in store.command("XRANGE", store.keys.dead(), "-", "+")]


def run_one(app: Running, number: int) -> float:
    """Run a good step; return how long it took from being submitted."""
    began = time.monotonic()
    assert app.app.aq.get_flow("one").submit(number).result(timeout=10) == number
    return time.monotonic() - began


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_is_kept_and_the_next_step_runs_within_a_second(
    app: Running, name: str
) -> None:
    before = len(dead_letters(app))
    add(app, {"i": "", "r": "", "j": "", **BAD[name]})
    assert run_one(app, 1) < 1
    wait_until(lambda: len(dead_letters(app)) == before + 1, "a dead letter")
    letter = dead_letters(app)[-1]
    assert letter[b"why"]
    assert letter[b"h"] or not BAD[name].get("h")
    assert app.ledger.lines("trapped") == []
    wait_until(lambda: queued(app) == 0, "nothing is left in the queue")


def queued(app: Running) -> int:
    store = app.app.aq.store
    streams = (store.keys.stream("shared", "normal"), store.keys.returned("shared", "normal"))
    return sum(store.command("XLEN", stream) for stream in streams)


def test_counters_that_are_none_count_as_nothing(app: Running) -> None:
    add(app, {"i": "x", "r": "", "j": "", "h": head(id="odd"), "b": GOOD_BODY,
              "a": "many", "n": "-1", "t": "now"})  # fmt: skip
    wait_until(lambda: app.ledger.lines("quick 5"), "the message runs")


def test_many_bad_messages_at_once_do_not_stop_the_worker(app: Running) -> None:
    before = len(dead_letters(app))
    for fields in list(BAD.values()) * 5:
        if len(fields.get("h", b"")) < 1000 and len(fields.get("b", b"")) < 1000:
            add(app, {"i": "", "r": "", "j": "", **fields})
    assert run_one(app, 2) < 1
    wait_until(lambda: queued(app) == 0, "all are ended")
    assert len(dead_letters(app)) > before + 100


def test_a_run_whose_message_is_bad_fails_and_says_why(app: Running) -> None:
    store = app.app.aq.store
    run = uuid4().hex
    key = store.keys.run(run)
    store.command(
        "HSET", key, "state", "running", "at", 1, "deadline", 0, "record", '{"flow":"one"}'
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
    assert run_one(app, 3) < 1
    assert len(dead_letters(app)) == before
