"""What is refused where a step is declared, and what is said of values that do not fit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from agentq import AgentQ, Context
from agentq.errors import DefinitionError, InvalidArgument, InvalidResult


class Plan(BaseModel):
    cities: list[str]


@pytest.fixture
def aq() -> AgentQ:
    return AgentQ("mine", overrides={"broker.url": "agentq://127.0.0.1:1"})


async def plan(number: int) -> int:
    return number


async def two(first: int, second: int) -> None: ...


async def keyword(first: int, *, second: int) -> None: ...


async def two_with_context(ctx: Context, first: int, second: int) -> None: ...


async def bare_context(ctx) -> None: ...  # noqa: ANN001 -- that is the point


async def with_default(ctx: Context, first: int, second: int = 2) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "why"),
    [
        (plan, {"retry": 3}, "step 'plan': there is no option 'retry'; did you mean retries?"),
        (plan, {"speed": 3}, "there is no option 'speed'; There are name, pool, lane, timeout"),
        (plan, {"timeout": "5 sec"}, "plan': timeout: '5 sec' is not a duration: write 250ms"),
        (plan, {"backoff": "-1"}, "plan': backoff: '-1' is not a duration"),
        (two, {}, "step 'two' asks for first, second: a step takes one argument"),
        (keyword, {}, "step 'keyword' asks for first, second"),
        (two_with_context, {}, "step 'two_with_context' asks for first, second"),
        (bare_context, {}, "step 'bare_context': annotate its first parameter, ctx: Context"),
    ],
)
def test_what_can_not_work_is_refused_by_the_steps_name(
    aq: AgentQ, function: Any, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        aq.step(**options)(function)
    assert why in str(refused.value)


def test_a_batched_task_refuses_unknown_options_too(aq: AgentQ) -> None:
    async def many(items: list[int]) -> list[int]:
        return items

    with pytest.raises(DefinitionError, match="did you mean retries"):
        aq.batched(retry=3)(many)


def test_a_second_parameter_with_a_default_is_no_second_argument(aq: AgentQ) -> None:
    assert aq.step(with_default).step is not None


def test_a_step_and_a_celery_task_are_not_made_of_each_other(aq: AgentQ) -> None:
    step = aq.step(plan)
    with pytest.raises(DefinitionError, match=r"is a task already: drop @app\.task"):
        aq.celery.task(step)
    with pytest.raises(DefinitionError, match=r"is a task already: use @aq\.step alone"):
        aq.step(aq.celery.task(name="add")(two))
    with pytest.raises(DefinitionError, match="two is a Celery task and no step"):
        step >> aq.celery.task(name="add")(two)


def test_submit_on_a_step_says_that_flows_are_submitted(aq: AgentQ) -> None:
    step: Any = aq.step(plan)
    with pytest.raises(AttributeError, match=r'make a flow of it, aq\.flow\("name", step\)'):
        step.submit(3)
    assert not hasattr(step, "whatever")


def test_a_forbidden_argument_says_what_is_taken_and_what_was_given(aq: AgentQ) -> None:
    step = aq.step(name="mine.plan")(plan).step
    assert step is not None
    with pytest.raises(InvalidArgument) as refused:
        step.encode_argument("abc")
    assert str(refused.value) == (
        "step 'mine.plan' takes int: Input should be a valid integer, unable to parse string as an "
        "integer, was given 'abc'"
    )


def test_a_forbidden_result_says_what_is_returned_and_what_was(aq: AgentQ) -> None:
    async def planned(_: object) -> Plan: ...

    planned.__annotations__["return"] = Plan
    step = aq.step(name="mine.planned")(planned).step
    assert step is not None
    with pytest.raises(InvalidResult) as refused:
        step.encode({"cities": 3})
    assert str(refused.value) == (
        "step 'mine.planned' returns Plan: cities: Input should be a valid list, returned 3"
    )


@pytest.mark.parametrize("annotated", [True, False])
def test_a_forgotten_await_is_guessed(aq: AgentQ, *, annotated: bool) -> None:
    async def forgetful(number):  # noqa: ANN001, ANN202
        return number

    if annotated:
        forgetful.__annotations__["return"] = int
    step = aq.step(name="f")(forgetful).step
    assert step is not None
    with pytest.raises(
        InvalidResult, match=r"^step 'f' returned a coroutine: did you forget await"
    ):
        step.encode(asyncio.sleep(0))
