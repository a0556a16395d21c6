"""What is written with `>>` and `each` becomes which nodes, under which ids."""

from __future__ import annotations

from typing import Any

import pytest

from agentq import AgentQ, each
from agentq.errors import DefinitionError
from agentq.flows.graph import COLLECT, EachNode, StepNode, join_id, task_id


@pytest.fixture
def aq() -> AgentQ:
    return AgentQ("graphs", overrides={"broker.url": "agentq://127.0.0.1:1"})


def steps(aq: AgentQ, *names: str) -> list[Any]:
    async def anything(_: object) -> Any: ...

    return [aq.step(name=name)(anything) for name in names]


def test_a_sequence_is_a_chain_of_nodes(aq: AgentQ) -> None:
    a, b, c = steps(aq, "a", "b", "c")
    assert aq.flow("f", a >> b >> c).graph.nodes == (
        StepNode(0, "a", 1),
        StepNode(1, "b", 2),
        StepNode(2, "c", None),
    )


def test_a_fan_out_points_to_its_members_and_to_what_follows(aq: AgentQ) -> None:
    plan, search, read, review = steps(aq, "plan", "search", "read", "review")
    flow = aq.flow("f", plan >> each(search >> read, of="tasks", at_once=4) >> review)
    assert flow.graph.nodes == (
        StepNode(0, "plan", 1),
        EachNode(1, "tasks", 4, 2, 4),
        StepNode(2, "search", 3),
        StepNode(3, "read", None),
        StepNode(4, "review", None),
    )


def test_a_fan_out_at_the_end_is_followed_by_one_that_collects(aq: AgentQ) -> None:
    plan, execute = steps(aq, "plan", "execute")
    assert aq.flow("f", plan >> each(execute)).graph.nodes == (
        StepNode(0, "plan", 1),
        EachNode(1, None, None, 2, 3),
        StepNode(2, "execute", None),
        StepNode(3, COLLECT, None),
    )


def test_fan_outs_nest(aq: AgentQ) -> None:
    a, b, c, d, e = steps(aq, "a", "b", "c", "d", "e")
    assert aq.flow("f", a >> each(b >> each(c) >> d) >> e).graph.nodes == (
        StepNode(0, "a", 1),
        EachNode(1, None, None, 2, 6),
        StepNode(2, "b", 3),
        EachNode(3, None, None, 4, 5),
        StepNode(4, "c", None),
        StepNode(5, "d", None),
        StepNode(6, "e", None),
    )


def test_a_part_can_be_used_in_several_flows(aq: AgentQ) -> None:
    a, b, c = steps(aq, "a", "b", "c")
    tail = b >> c
    assert aq.flow("one", a >> tail).graph.steps() == ["a", "b", "c"]
    assert aq.flow("two", tail).graph.steps() == ["b", "c"]


def test_ids_are_the_same_at_each_attempt_and_differ_between_members() -> None:
    frames = (("r:j1.0", 3), ("r:j3.3", 7))
    assert task_id("r", 0, ()) == "r:0"
    assert task_id("r", 5, frames) == "r:5.3.7"
    assert join_id("r", 3, frames[:1]) == "r:j3.3"


def test_a_worker_of_another_version_knows_what_it_lacks(aq: AgentQ) -> None:
    a, b = steps(aq, "a", "b")
    graph = aq.flow("f", a >> each(b)).graph
    assert graph.runs(0, "a")
    assert graph.runs(2, "b")
    assert not graph.runs(0, "b")
    assert not graph.runs(1, "b")  # the fan-out itself
    assert not graph.runs(4, "b")
    assert not graph.runs(-1, COLLECT)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda a, _: each(a), "must begin with a step"),
        (lambda a, b: a >> each(each(b)), "needs a step between"),
        (lambda a, _: a >> print, "print is no step: declare it with @aq.step"),
        (lambda a, b: a >> each(b, at_once=0), "at least one member"),
        (lambda a, b: a >> each(b, join="any"), 'only join="all" exists'),
    ],
)
def test_what_can_not_work_is_refused_where_it_is_written(aq: AgentQ, wrong: Any, why: str) -> None:
    a, b = steps(aq, "a", "b")
    with pytest.raises(DefinitionError, match=why):
        aq.flow("f", wrong(a, b))


def test_names_are_taken_once(aq: AgentQ) -> None:
    [a] = steps(aq, "a")
    aq.flow("f", a)
    with pytest.raises(DefinitionError, match="flow 'f' is declared twice"):
        aq.flow("f", a)
    with pytest.raises(DefinitionError, match="step 'a' is declared twice"):
        steps(aq, "a")


def test_a_step_of_another_app_is_refused(aq: AgentQ) -> None:
    [other] = steps(AgentQ("other", overrides={"broker.url": "agentq://127.0.0.1:1"}), "x")
    with pytest.raises(DefinitionError, match="step 'x' belongs to another app"):
        aq.flow("f", other)
