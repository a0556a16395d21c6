"""Parts of a flow that can not fit each other are refused; whatever might fit is not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, RootModel, model_validator

from agentq import AgentQ, Err, Ok, each
from agentq.errors import DefinitionError


class Plan(BaseModel):
    cities: list[str]
    count: int = 0


class Wider(BaseModel):
    cities: list[str]
    country: str


class Lenient(BaseModel):
    name: str

    @model_validator(mode="before")
    @classmethod
    def of_a_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Names(RootModel[list[str]]):
    """Travels as a list."""


@pytest.fixture
def aq() -> AgentQ:
    return AgentQ("fitting", overrides={"broker.url": "agentq://127.0.0.1:1"})


def step(aq: AgentQ, name: str, takes: Any, gives: Any) -> Any:
    async def anything(value: Any) -> Any:
        return value

    anything.__annotations__ = {"value": takes, "return": gives}
    return aq.step(name=name)(anything)


@pytest.mark.parametrize(
    ("gives", "takes", "fits"),
    [
        (int, str, False),
        (str, int, True),  # "3"
        (float, int, True),  # 3.0
        (Any, Plan, True),
        (Plan, Any, True),
        (Plan, str, False),
        (str, Plan, False),
        (str, Lenient, True),
        (Plan, Plan, True),
        (Wider, Plan, True),
        (Plan, Wider, False),
        (Plan, list[str], False),
        (list[str], Plan, False),
        (list[str], Names, True),
        (list[str], list[int], True),
        (list[str], str, False),
        (int | str, str, True),
        (None, int, False),
        (None, int | None, True),
        (dict[str, int], Plan, True),
    ],
)
def test_only_what_fails_for_every_value_is_refused(
    aq: AgentQ, gives: Any, takes: Any, *, fits: bool
) -> None:
    a, b = step(aq, "a", Any, gives), step(aq, "b", takes, Any)
    if fits:
        aq.flow("f", a >> b)
    else:
        with pytest.raises(DefinitionError, match=r"flow 'f': step 'b' takes .*, but step 'a' ret"):
            aq.flow("f", a >> b)


@pytest.mark.parametrize(
    ("gives", "of", "why"),
    [
        (Plan, "citys", "each(of='citys'), but step 'a' returns Plan, which has cities, count"),
        (Plan, "count", "each(of='count') needs a list, but Plan.count is int"),
        (Plan, None, "each() needs a list, but step 'a' returns Plan; name the list with of="),
        (int, None, "each() needs a list, but step 'a' returns int"),
        (list[str], "cities", "each(of='cities') needs a list, but step 'a' returns list[str]"),
    ],
)
def test_a_fan_out_over_no_list_is_refused(aq: AgentQ, gives: Any, of: str, why: str) -> None:
    a, b = step(aq, "a", Any, gives), step(aq, "b", Any, Any)
    with pytest.raises(DefinitionError) as refused:
        aq.flow("f", a >> each(b, of=of))
    assert str(refused.value) == f"flow 'f': {why}"


@pytest.mark.parametrize("gives", [Plan, dict[str, list[str]], Any])
def test_a_fan_out_over_a_list_or_who_knows_what_passes(aq: AgentQ, gives: Any) -> None:
    a, b = step(aq, "a", Any, gives), step(aq, "b", str, Any)
    aq.flow("f", a >> each(b, of="cities"))


def test_a_member_is_given_one_item(aq: AgentQ) -> None:
    a, b = step(aq, "a", Any, list[int]), step(aq, "b", str, Any)
    with pytest.raises(DefinitionError, match="step 'b' takes str, but each\\(\\) gives it int"):
        aq.flow("f", a >> each(b))


@pytest.mark.parametrize("takes", [list, Any, list[Any], list[dict[str, Any]], list[Ok[str] | Err]])
def test_what_may_take_outcomes_passes(aq: AgentQ, takes: Any) -> None:
    a, b, c = step(aq, "a", Any, list), step(aq, "b", Any, Any), step(aq, "c", takes, Any)
    aq.flow("f", a >> each(b) >> c)


@pytest.mark.parametrize(("takes", "item"), [(list[str], "str"), (list[Plan], "Plan"), (int, "T")])
def test_values_without_their_outcomes_are_refused_behind_a_fan_out(
    aq: AgentQ, takes: Any, item: str
) -> None:
    a, b, c = step(aq, "a", Any, list), step(aq, "b", Any, Any), step(aq, "c", takes, Any)
    with pytest.raises(DefinitionError) as refused:
        aq.flow("f", a >> each(b) >> c)
    assert f"after each() annotate list[Ok[{item}] | Err]" in str(refused.value)


def test_annotations_that_do_not_resolve_are_left_alone(aq: AgentQ) -> None:
    a, b = step(aq, "a", Any, "Nowhere"), step(aq, "b", str, Any)
    aq.flow("f", a >> b)
