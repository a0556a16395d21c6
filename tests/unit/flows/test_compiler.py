"""What the end of a step brings about, as effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from agentq import AgentQ, each
from agentq.broker.outbox import Outbox
from agentq.errors import InvalidResult, RunTooLarge
from agentq.flows.compiler import Compiler, Place
from agentq.flows.graph import Graph
from agentq.outcome import Err


@dataclass
class Limits:
    at_once: int = 8
    max_members: int = 2000
    max_bytes: int = 1 << 26


@pytest.fixture
def aq() -> AgentQ:
    aq = AgentQ("compiled", overrides={"broker.url": "agentq://127.0.0.1:1"})

    async def anything(_: object) -> Any: ...

    a, b, c = (aq.step(name=name, lane=lane)(anything) for name, lane in
               (("a", "high"), ("b", "normal"), ("c", "low")))  # fmt: skip
    aq.flow("f", a >> each(b) >> c)
    return aq


@pytest.fixture
def graph(aq: AgentQ) -> Graph:
    return aq.flows["f"].graph


@pytest.fixture
def compiler(aq: AgentQ) -> Compiler:
    return Compiler(
        steps=aq.steps, limits=Limits(), keep_ms=1000, join_ttl_ms=2000, max_payload=262_144,
        blobs=aq.blobs,
    )  # fmt: skip


def ended(compiler: Compiler, graph: Graph, place: Place, result: Any) -> Outbox:
    box = Outbox()
    compiler.ended(graph, place, result, box)
    return box


def join_of(box: Outbox) -> tuple[Any, ...]:
    [join] = [effect for effect in box.effects if effect[0] == "join"]
    return join


FIRST = Place("r", "f", 0, (), "r:0")
MEMBER = Place("r", "f", 2, (("r:j1", 3),), "r:0")
BODY = Place("r", "f", 3, (), "r:0", "r:j1")


def test_members_get_celerys_headers_and_their_frame(compiler: Compiler, graph: Graph) -> None:
    join = join_of(ended(compiler, graph, FIRST, b'["x","y"]'))
    assert join[1:8] == ("r:j1", 2, 8, 2000, "r", 1, 2)
    body, members = join[8:16], [join[16:24], join[24:32]]
    assert (body[0], body[1], body[3], body[5]) == ("shared", "low", "r:3", "")
    assert [(one[1], one[3], one[5]) for one in members] == [
        ("normal", "r:2.0", "r:j1|0"),
        ("normal", "r:2.1", "r:j1|1"),
    ]
    headers = orjson.loads(members[1][6])["headers"]
    assert (headers["group"], headers["group_index"], headers["parent_id"]) == ("r:j1", 1, "r:0")
    assert headers["aq"]["path"] == [["r:j1", 1]]
    assert orjson.loads(members[1][7])[0] == ["y"]


def test_a_wide_fan_out_is_staged_under_an_id_of_this_attempt(
    compiler: Compiler, graph: Graph
) -> None:
    wide = orjson.dumps(list(range(1000)))
    boxes = [ended(compiler, graph, FIRST, wide) for _ in range(2)]
    [[first], [second]] = [list(box.staged) for box in boxes]
    assert first != second
    size = sum(len(m.headers) + len(m.body) for m in boxes[0].staged[first])
    assert join_of(boxes[0])[7] == f"staged:{size}:{first}"
    assert [message.join for message in boxes[0].staged[first]] == [
        f"r:j1|{i}" for i in range(1000)
    ]


def test_a_fan_out_beyond_the_limit_is_refused(compiler: Compiler, graph: Graph) -> None:
    with pytest.raises(RunTooLarge, match=r"asks for 2001 members; runs\.max_members is 2000"):
        ended(compiler, graph, FIRST, orjson.dumps([0] * 2001))


def test_a_fan_out_needs_a_list(compiler: Compiler, graph: Graph) -> None:
    with pytest.raises(InvalidResult, match="its result must be a list, got int"):
        ended(compiler, graph, FIRST, b"5")


def test_a_members_end_is_counted_and_nothing_else(compiler: Compiler, graph: Graph) -> None:
    assert ended(compiler, graph, MEMBER, b"[1]").effects == [("part", "r:j1", 3, b'{"value":[1]}')]


def test_a_members_failure_is_an_outcome(compiler: Compiler, graph: Graph) -> None:
    [(kind, join, index, wire)] = ended(
        compiler, graph, MEMBER, Err("ValueError", "no", "b", 2)
    ).effects
    assert (kind, join, index) == ("part", "r:j1", 3)
    assert orjson.loads(wire) == {"kind": "ValueError", "message": "no", "step": "b", "attempts": 2}


def test_the_body_forgets_the_outcomes_and_ends_the_run(compiler: Compiler, graph: Graph) -> None:
    forget, end = ended(compiler, graph, BODY, b'"all"').effects
    assert forget == ("forget", "r:j1")
    assert end[:5] == ("end", "r", "done", b'"all"', 1000)


def test_a_failure_outside_of_a_fan_out_ends_the_run(compiler: Compiler, graph: Graph) -> None:
    [end] = ended(compiler, graph, FIRST, Err("ValueError", "no", "a", 1)).effects
    assert end[:3] == ("end", "r", "failed")
