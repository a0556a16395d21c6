"""Messages that are none, put into a queue by hand, and one that is far too large."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import orjson

from agentq.errors import PayloadTooLarge
from tests.fault.scenarios.ground import Ground, ground
from tests.fault.scenarios.row import Row
from tests.fault.scenarios.servers import LEASE_S
from tests.support.ledger import note
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

TASK = "tests.support.apps.matrix.work"
DEEP = b"[" * 100_000
HUGE = b"x" * 8_000_000
PLACE = {"v": 1, "run": "r", "flow": "fan", "node": 0, "path": []}
GOOD_BODY = b'[["odd"],{},null]'

WITHIN_S = 1.0
"""Behind a bad message a good one runs within this."""


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
    "headers without a task": {"h": b'{"headers":{},"properties":{}}', "b": GOOD_BODY},
    "deep nesting": {"h": DEEP, "b": GOOD_BODY},
    "a huge head": {"h": HUGE, "b": GOOD_BODY},
    "a number for a task": {"h": head(task=5), "b": GOOD_BODY},
    "an id that is a list": {"h": head(id=[1]), "b": GOOD_BODY},
    "properties that are text": {"h": head(properties="p"), "b": GOOD_BODY},
    "delivery info that is a list": {"h": head(properties={"delivery_info": [1]}), "b": GOOD_BODY},
    "header aq a list": {"h": head(aq=["flow"]), "b": GOOD_BODY},
    "a flow without a place": {"h": head(aq={"flow": "fan"}), "b": GOOD_BODY},
    "a flow that is a list": {"h": head(aq={**PLACE, "flow": ["fan"]}), "b": GOOD_BODY},
    "a node that is text": {"h": head(aq={**PLACE, "node": "0"}), "b": GOOD_BODY},
    "a path that is none": {"h": head(aq={**PLACE, "path": [[1, "j"]]}), "b": GOOD_BODY},
    "retries that are text": {"h": head(retries="many"), "b": GOOD_BODY},
    "an expiry that is no date": {"h": head(expires="yesterday"), "b": GOOD_BODY},
    "one time limit": {"h": head(timelimit=5), "b": GOOD_BODY},
    "a time limit that is text": {"h": head(timelimit="abc"), "b": GOOD_BODY},
    "three time limits": {"h": head(timelimit=[1, 2, 3]), "b": GOOD_BODY},
    "an unknown compression": {"h": head(compression="squeeze"), "b": GOOD_BODY},
    "bytes that are not compressed": {"h": head(compression="application/x-gzip"), "b": GOOD_BODY},
    "a content type that is a list": {"h": head(content_type=["x"]), "b": GOOD_BODY},
    "an unknown content type": {"h": head(content_type="application/odd"), "b": GOOD_BODY},
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


def malformed(trials: int, *, kind: str) -> list[Row]:
    """Put each bad message in front of a good one; *trials* times all of them."""
    slowest = 0.0
    with ground(
        lease=LEASE_S, WORKER__POLL="200ms"
    ) as here:  # nobody wakes it for what is added by hand
        worker = here.worker(kind)
        here.answers()
        kept = 0
        for _ in range(trials):
            for name, fields in BAD.items():
                slowest = max(slowest, _behind(here, name, fields))
                kept += 1
        found = wait_until(lambda: len(letters(here)) >= kept and letters(here), "dead letters")
        assert all(letter[b"why"] for letter in found)
        assert here.running.ledger.lines("trapped") == [], "a pickle was loaded"
        assert worker.alive()
        lost, doubled = here.ended(workers=1)
        lost += kept - len(found)
    tried = trials * len(BAD)
    assert slowest < WITHIN_S, f"a good one behind a bad one took {slowest:.1f} s"
    what = f"malformed messages, {kind}"
    return [Row(18, what, tried, lost, doubled, slowest, f"{len(found)} of {tried} dead letters")]


def _behind(here: Ground, name: str, fields: dict[str, Any]) -> float:
    """Return how long the good message behind a bad one took."""
    before = len(letters(here))
    add(here, {"i": "", "r": "", "j": "", **fields})
    took = here.answers()
    wait_until(lambda: len(letters(here)) == before + 1, f"a dead letter for {name}")
    return took


def add(here: Ground, fields: dict[str, Any]) -> None:
    """Put an entry into the queue, as a stranger would."""
    here.redis.xadd(here.keys.stream("shared", "normal"), fields)


def letters(here: Ground) -> list[dict[bytes, bytes]]:
    """Return the dead letters."""
    return [fields for _, fields in here.redis.xrange(here.keys.dead())]


def too_large(trials: int, *, kind: str, megabytes: int) -> list[Row]:
    """Hand in far too many bytes, by the front door and by the back one."""
    slowest = grown = 0.0
    with ground(lease=LEASE_S, WORKER__POLL="200ms") as here:
        worker = here.worker(kind)
        here.answers()
        before = _resident_mb(worker)
        body = b'[["' + b"x" * (megabytes << 20) + b'"],{},null]'
        for _ in range(trials):
            try:
                here.app.work.delay("x" * (megabytes << 20))
            except PayloadTooLarge:
                pass
            else:
                raise AssertionError("a producer sent it")
            add(here, {"i": "large", "r": "", "j": "", "h": head(), "b": body})
            slowest = max(slowest, here.answers())
        wait_until(lambda: len(letters(here)) == trials, "dead letters")
        time.sleep(0.5)  # for the allocator to give back what it will
        grown = _resident_mb(worker) - before
        kept = max(len(letter[b"b"]) for letter in letters(here))
        assert worker.alive()
        lost, doubled = here.ended(workers=1)
    note = f"refused at the producer; {kept} bytes kept; worker's memory grew by {grown:.0f} MB"
    what = f"payload of {megabytes} MB, {kind}"
    return [Row(19, what, trials, lost, doubled, slowest, note)]


def _resident_mb(worker: WorkerProcess) -> float:
    fields = Path(f"/proc/{worker.pid}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024
