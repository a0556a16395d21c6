"""What a step is given is read before its deadline is asked, and a failure to read it is its end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from agentq import AgentQ
from agentq.broker import envelope
from agentq.broker.envelope import Envelope
from agentq.errors import BrokerUnavailable
from agentq.store import calls
from agentq.store.keys import Keys
from agentq.timing.deadline import Deadline
from agentq.worker.delivery import Delivery
from agentq.worker.tracer import Tracer

DEADLINE_MS = 1000


class Clock:
    """The broker's, as far as a test moves it."""

    def __init__(self) -> None:
        self.ms = DEADLINE_MS - 1

    def now_ms(self, _: float) -> int:
        return self.ms


class Joins:
    """A read that moves the clock, or fails."""

    def __init__(self, clock: Clock, error: Exception | None = None) -> None:
        self._clock, self._error = clock, error

    async def resolved(self, _: Delivery, args: list[Any]) -> list[Any]:
        self._clock.ms += 20
        if self._error is not None:
            raise self._error
        return args


class Events:
    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


def traced(
    error: Exception | None = None, entry: bytes = b"1-0"
) -> tuple[list[Any], list[calls.Call], Delivery]:
    """Run one step; return what it was given, the calls that end it, and its delivery."""
    aq = AgentQ("traced", overrides={"broker.url": "agentq://127.0.0.1:1"})
    given: list[Any] = []

    @aq.step(name="only")
    async def only(value: Any) -> None:
        given.append(value)

    aq.flow("f", only)
    clock = Clock()
    cell = SimpleNamespace(store=SimpleNamespace(keys=Keys("cell")))
    parts: Any = SimpleNamespace(
        app=aq, hostname="w", cell=cell, clock=clock, joins=Joins(clock, error), events=Events(),
        threads=None, processes=None, jitter=lambda: 0.5,
    )  # fmt: skip
    ours = {"v": 1, "run": "r", "flow": "f", "node": 0, "path": []}
    headers = envelope.step_headers("only", "r:0", ours=ours, parent=None, root="r:0")
    message = Envelope("only", "r:0", headers, {}, envelope.JSON, "utf-8")
    delivery = Delivery(
        aq.celery.tasks["only"], message, "shared", "normal", b"s",
        entry, "r:0", "r", "", envelope.step_body(b"1"), 0, 0, 0,
        Deadline(DEADLINE_MS if error is None else 0),
    )  # fmt: skip
    ending = asyncio.run(Tracer(parts).run(delivery))
    return given, ending, delivery


def test_a_step_whose_outcomes_came_behind_its_deadline_is_not_started() -> None:
    given, _, _ = traced()
    assert given == []


def test_what_can_not_be_read_fails_the_step_with_that_error() -> None:
    given, _, delivery = traced(ValueError("no such thing"))
    assert given == []
    [end] = [effect for effect in delivery.outbox.effects if effect[0] == "end"]
    failure = next(orjson.loads(part) for part in end if str(part).startswith("b'{\"kind"))
    assert (failure["kind"], failure["message"]) == ("ValueError", "no such thing")


def test_a_broker_that_is_away_is_no_outcome_of_a_step() -> None:
    with pytest.raises(BrokerUnavailable):
        traced(BrokerUnavailable("no answer"))


def test_a_step_never_began_before_it_was_queued_however_far_the_workers_clock_lags() -> None:
    _, _, delivery = traced(ValueError("tried"), entry=b"5000-0")  # the clock says 1,019
    [event] = [effect for effect in delivery.outbox.effects if effect[0] == "event"]
    entry = next(orjson.loads(part) for part in event if str(part).startswith("b'{\"step"))
    assert (entry["start"], entry["waited"]) == (5000, 0)
