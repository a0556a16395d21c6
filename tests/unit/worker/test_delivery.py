"""What a fetched entry is, whatever its bytes are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.broker import envelope
from agentq.flows.graph import Graph, StepNode
from agentq.worker.delivery import Delivery, Settled, Unknown, judge

TASKS: Any = {"t": SimpleNamespace(name="t")}
FLOWS: Any = {"f": SimpleNamespace(graph=Graph("f", (StepNode(0, "t", None),)))}
OURS = {"v": 1, "run": "r", "flow": "f", "node": 0, "path": []}


def judged(*, live: int = 1, **fields: Any) -> Any:
    flat = [part for key, value in fields.items() for part in (key.encode(), value)]
    entry = [b"low", b"s:p:low", b"1700-0", flat, live, 0]
    return judge(entry, pool="p", tasks=TASKS, flows=FLOWS, keep_ms=1000, max_payload=1000)


def head(**headers: Any) -> bytes:
    return envelope.pack({"task": "t", "id": "id", **headers}, {})


def test_a_good_entry_is_a_delivery_with_its_counters() -> None:
    found = judged(i=b"id", r=b"r", j=b"j|2", h=head(aq=OURS), b=b"[[1],{},null]", a=b"2", n=b"3")
    assert isinstance(found, Delivery)
    assert (found.pool, found.lane, found.run, found.join) == ("p", "low", "r", "j|2")
    assert (found.attempts, found.retries, found.attempt, found.born_ms) == (2, 3, 6, 1700)
    assert found.arguments() == ([1], {}, {})
    assert found.key == b"s:p:low|1700-0"


def test_an_entry_of_an_ended_run_is_dropped() -> None:
    found = judged(live=0, i=b"id", r=b"r", h=head(), b=b"")
    assert isinstance(found, Settled)
    assert found.effects == []


@pytest.mark.parametrize(
    ("headers", "lacking"),
    [
        ({"task": "new"}, "task new"),
        ({"aq": {**OURS, "flow": "new"}}, "flow new"),
        ({"aq": {**OURS, "node": 7}}, "flow f with t at that place"),
    ],
)
def test_what_another_version_may_know_is_left_to_it(headers: dict[str, Any], lacking: str) -> None:
    found = judged(i=b"id", h=head(**headers), b=b"")
    assert found == Unknown("p:low", b"s:p:low", b"1700-0", b"id", lacking)


def test_a_malformed_member_counts_as_a_failure_in_its_fan_in() -> None:
    found = judged(i=b"id", r=b"r", j=b"j|2", h=b"?", b=b"x")
    dead, part = found.effects
    assert dead[:6] == ("dead", dead[1], "id", 0, b"?", b"x")
    assert dead[6:] == (0, 1700, "p", "low", "r", "j|2")
    assert part[:3] == ("part", "j", "2")
    assert orjson.loads(part[3])["kind"] == "Malformed"


def test_a_malformed_step_ends_its_run() -> None:
    _, end = judged(i=b"id", r=b"r", j=b"", h=b"?", b=b"x").effects
    assert end[:3] == ("end", "r", "failed")


@given(
    st.dictionaries(
        st.sampled_from(["i", "r", "j", "h", "b", "a", "n", "t", "x"]),
        st.binary(max_size=40)
        | st.recursive(
            st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["t", "f", "r", ""]),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["headers", "properties", "task", "id", "aq", "flow", "run",
                                 "node", "path", "retries", "timelimit", "expires"]),
                inner, max_size=5,
            ),
            max_leaves=12,
        ).map(orjson.dumps),
        max_size=9,
    )
)  # fmt: skip
def test_no_bytes_raise(fields: dict[str, bytes]) -> None:
    assert isinstance(judged(**fields), Delivery | Settled | Unknown)


def test_what_no_producer_can_have_sent_is_not_read() -> None:
    found = judged(i=b"id", h=head(), b=b"x" * 16_001)
    assert isinstance(found, Settled)
    assert found.why == "body: 16001 bytes, far beyond broker.max_payload (1000)"
