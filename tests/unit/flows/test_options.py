"""Options that are nothing they may be are refused by name, with what was given and what may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentq import AgentQ
from agentq.errors import AgentQError, DefinitionError, InvalidOption
from agentq.flows.flow import Flow


async def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def aq() -> AgentQ:
    return AgentQ("mine", overrides={"broker.url": "agentq://127.0.0.1:1"})


@pytest.fixture
def flow(aq: AgentQ) -> Flow:
    return aq.flow("double", aq.step(double))


async def asubmit(flow: Flow) -> object:
    return await flow.asubmit(1, deadline="3")


async def aresult(aq: AgentQ) -> object:
    return await aq.run("r").aresult("5 minutes")


ALLOWED = "is not a duration: write 250ms, 30s, 2m, 1h or 7d"


@pytest.mark.parametrize(
    ("option", "call"),
    [
        ("deadline: '3'", lambda flow: flow.submit(1, deadline="3")),
        ("deadline: '3'", lambda flow: asyncio.run(asubmit(flow))),
        ("deadline: '3'", lambda flow: flow.submit_many([1], deadline="3")),
        ("wait: 'x'", lambda flow: flow.submit(1, wait="x")),
        ("wait: 'x'", lambda flow: flow.submit_many([1], wait="x")),
    ],
)
def test_what_is_no_duration_is_refused_by_its_options_name(
    flow: Flow, option: str, call: Callable[[Flow], object]
) -> None:
    with pytest.raises(InvalidOption, match=f"^{option} {ALLOWED}$") as refused:
        call(flow)
    assert isinstance(refused.value, AgentQError)
    assert isinstance(refused.value, ValueError)


def test_so_is_a_timeout_of_a_result(aq: AgentQ) -> None:
    with pytest.raises(InvalidOption, match=f"^timeout: 'soon' {ALLOWED}$"):
        aq.run("r").result(timeout="soon")
    with pytest.raises(InvalidOption, match=f"^timeout: '5 minutes' {ALLOWED}$"):
        asyncio.run(aresult(aq))


def test_a_duration_that_no_clock_reaches_is_refused_as_well(flow: Flow) -> None:
    for far in (float("inf"), "99999999999d"):
        with pytest.raises(InvalidOption, match=f"^deadline: {far!r} is longer than any"):
            flow.submit(1, deadline=far)


@pytest.mark.parametrize("option", ["key", "tenant"])
@pytest.mark.parametrize(
    ("given", "said"), [(5, "5 is not a str"), ("\ud800", "can not be written in UTF-8")]
)
def test_what_is_no_text_is_refused_by_its_options_name(
    flow: Flow, option: str, given: Any, said: str
) -> None:
    with pytest.raises(InvalidOption, match=f"^{option}: .*{said}$"):
        flow.submit(1, **{option: given})


@pytest.mark.parametrize("option", ["countdown", "expires"])
@pytest.mark.parametrize("given", [1e18, -1e18, float("inf"), float("nan")])
def test_seconds_that_no_date_can_be_made_of_are_refused(
    aq: AgentQ, option: str, given: float
) -> None:
    task = aq.celery.task(double)
    with pytest.raises(
        InvalidOption, match=f"^{option}={given!r} is not in seconds".replace("+", ".")
    ):
        task.apply_async((1,), **{option: given})


@pytest.mark.parametrize("budget", ["1GB", 0, 1.5, True])
@pytest.mark.parametrize("option", ["max_bytes", "max_members"])
def test_a_budget_that_is_no_whole_number_is_refused(
    aq: AgentQ, option: str, budget: object
) -> None:
    options: Any = {option: budget}
    text = rf"^flow 'double': {option}={budget!r} is not a whole number of \w+, 1 or more$"
    with pytest.raises(DefinitionError, match=text):
        aq.flow("double", aq.step(double), **options)
