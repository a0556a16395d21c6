from __future__ import annotations

import zlib
from time import monotonic
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.broker.received import Dropped, Exhausted, Fence, Received, Unreadable, judge
from agentq.broker.terms import Terms

STREAM = b"{aq:main}:s:shared:normal"


def entry(
    fields: dict[bytes, bytes], *, live: int = 1, deadline: int = 0, stream: bytes = STREAM
) -> list[Any]:
    flat = [part for item in fields.items() for part in item]
    return [b"normal", stream, b"1-0", flat, live, deadline]


def message(**headers: Any) -> dict[bytes, bytes]:
    head = {"headers": {"task": "t", "id": "1", **headers}, "properties": {"priority": 5}}
    return {
        b"i": b"1", b"r": b"", b"j": b"", b"h": orjson.dumps(head),
        b"b": b'[[1,"two"],{},{"chain":null}]',
    }  # fmt: skip


def received(fields: dict[bytes, bytes]) -> Received:
    verdict = judge(entry(fields), pool="shared", now_ms=0, terms=Terms())
    assert isinstance(verdict, Received)
    return verdict


def test_good_message_becomes_kombus_payload() -> None:
    verdict = received(message(eta="2026-01-01T00:00:00+00:00"))
    assert verdict.fence == Fence("shared", "normal", STREAM.decode(), "1-0")
    assert verdict.payload["decoded"] == [[1, "two"], {}, {"chain": None}]
    assert verdict.payload["headers"]["eta"] is None
    assert verdict.payload["headers"]["argsrepr"] == '(1,"two")'
    assert verdict.payload["properties"]["delivery_tag"] == "{aq:main}:s:shared:normal|1-0"
    info = verdict.payload["properties"]["delivery_info"]
    assert 0 <= monotonic() - info.pop("taken") < 60
    assert info == {
        "exchange": "", "routing_key": "shared", "priority": 5, "redelivered": False, "deaths": 0,
    }  # fmt: skip


def test_delivery_tag_names_its_fence() -> None:
    fence = Fence("shared", "normal", STREAM.decode(), "1-0")
    assert Fence.of(fence.tag) == fence


def test_tag_of_a_fan_out_message_is_no_fence() -> None:
    assert Fence.of("8f6d3c1e-0000-4000-8000-000000000000") is None


@pytest.mark.parametrize("field", [b"a", b"s"], ids=["alone", "beside others"])
def test_death_of_an_earlier_worker_makes_it_redelivered(field: bytes) -> None:
    verdict = received(message() | {field: b"1"})
    assert verdict.payload["properties"]["delivery_info"]["redelivered"] is True


def test_servers_retries_count_with_the_tasks_own() -> None:
    verdict = received(message(retries=2) | {b"n": b"3"})
    assert verdict.payload["headers"]["retries"] == 5


def test_message_whose_workers_died_too_often_is_exhausted() -> None:
    verdict = judge(entry(message() | {b"a": b"3"}), pool="shared", now_ms=0, terms=Terms())
    assert isinstance(verdict, Exhausted)
    assert verdict.attempts == 3


def test_message_of_an_ended_run_is_dropped() -> None:
    verdict = judge(
        entry(message() | {b"r": b"r1"}, live=0), pool="shared", now_ms=0, terms=Terms()
    )
    assert verdict == Dropped(Fence("shared", "normal", STREAM.decode(), "1-0"), "r1")


@pytest.mark.parametrize(("now_ms", "kind"), [(100, Received), (101, Dropped)])
def test_deadline_belongs_to_the_time_it_names(now_ms: int, kind: type) -> None:
    verdict = judge(entry(message(), deadline=100), pool="shared", now_ms=now_ms, terms=Terms())
    assert type(verdict) is kind


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({b"b": b"[["}, "body: JSONDecodeError"),
        ({b"b": b"{}"}, "body: not [args, kwargs, embed]"),
        ({b"b": b"[1,{},{}]"}, "body: args must be a list"),
        ({b"b": b"[[],{},3]"}, "body: embed must be an object"),
        ({b"h": b"\xff"}, "no message"),
        (message(retries="many"), "header retries"),
        (message(timelimit=[1]), "header timelimit must be"),
    ],
)
def test_unreadable_message_says_why_and_keeps_its_bytes(
    change: dict[bytes, bytes], reason: str
) -> None:
    fields = message() | {b"r": b"run", b"j": b"join|2"} | change
    fields |= {b"r": b"run", b"j": b"join|2"}
    verdict = judge(entry(fields), pool="shared", now_ms=0, terms=Terms())
    assert isinstance(verdict, Unreadable)
    assert verdict.reason.startswith(reason)
    letter = verdict.letter
    assert (letter.id, letter.attempts) == ("1", 0)
    assert (letter.headers, letter.body) == (fields[b"h"], fields[b"b"])
    assert (letter.run, letter.join) == ("run", "join|2")


@given(st.dictionaries(st.sampled_from([b"i", b"r", b"j", b"h", b"b", b"a", b"n"]), st.binary()))
def test_no_bytes_raise(fields: dict[bytes, bytes]) -> None:
    judge(entry(message() | fields), pool="shared", now_ms=0, terms=Terms())


def test_a_packed_body_that_can_not_be_unpacked_is_for_the_dead_letters() -> None:
    for method in ("squeeze", "application/x-gzip"):
        verdict = judge(entry(message(compression=method)), pool="shared", now_ms=0, terms=Terms())
        assert isinstance(verdict, Unreadable)
        assert verdict.letter.body == b'[[1,"two"],{},{"chain":null}]'


def test_a_packed_body_is_handed_over_unpacked() -> None:
    packed = zlib.compress(b"[[5],{},null]")
    verdict = received(message(compression="application/x-gzip") | {b"b": packed})
    assert verdict.payload["decoded"] == [[5], {}, None]
    assert "compression" not in verdict.payload["headers"]


def test_what_no_producer_can_have_sent_is_not_read() -> None:
    body = b'[["' + b"x" * 1700 + b'"],{},null]'
    verdict = judge(
        entry(message() | {b"b": body}), pool="p", now_ms=0, terms=Terms(max_payload=100)
    )
    assert isinstance(verdict, Unreadable)
    assert verdict.reason == "body: 1714 bytes, far beyond broker.max_payload (100)"
