from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from agentq.errors import ModelRefused, ModelTimeout, ModelUnavailable
from agentq.inference.calls import ModelCalls
from agentq.inference.client import ModelClient
from agentq.inference.reply import Reply
from agentq.inference.tiers import Persistence
from tests.unit.inference.model_server import GOOD, SILENCE, ModelServer, Move, response

BROKEN = response(500, b"")


class Asked:
    """What a scenario ended with, and what the server and the pauses saw."""

    def __init__(self) -> None:
        self.models: list[str] = []
        self.pauses: list[float] = []
        self.reply: Reply | None = None

    async def chat(
        self, *moves: Move, small: str | None = None, within: timedelta | None = None
    ) -> None:
        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)

        async with ModelServer(*moves) as server, ModelClient(base_url=server.url) as client:
            calls = ModelCalls(
                client=client,
                large="L",
                small=small,
                persistence=Persistence(retries=1, backoff=timedelta(seconds=1)),
                jitter=lambda: 1.0,
                sleep=pause,
            )
            try:
                self.reply = await calls.chat("Hi", within=within)
            finally:
                self.models = [body["model"] for _, _, body in server.requests]


def test_a_call_that_succeeds_says_so() -> None:
    asked = Asked()
    asyncio.run(asked.chat(GOOD, small="S"))
    assert asked.reply
    assert (asked.reply.text, asked.reply.tier) == ("Hello there", "large")
    assert (asked.reply.attempts, asked.reply.retrying) == (1, timedelta(0))
    assert asked.pauses == []


def test_a_failing_large_model_is_tried_twice_then_the_small_one_answers() -> None:
    asked = Asked()
    asyncio.run(asked.chat(BROKEN, BROKEN, GOOD, small="S"))
    assert asked.reply
    assert (asked.reply.tier, asked.reply.attempts) == ("small", 3)
    assert asked.reply.retrying > timedelta(0)
    assert asked.models == ["L", "L", "S"]
    assert asked.pauses == [0.5, 0.0]


def test_when_nothing_helps_the_last_error_says_how_often_it_was_tried() -> None:
    asked = Asked()
    with pytest.raises(ModelUnavailable) as caught:
        asyncio.run(asked.chat(BROKEN, BROKEN, BROKEN, BROKEN, small="S"))
    assert caught.value.attempts == 4
    assert asked.models == ["L", "L", "S", "S"]


def test_a_refused_request_is_made_once() -> None:
    asked = Asked()
    with pytest.raises(ModelRefused) as caught:
        asyncio.run(asked.chat(response(400, b""), small="S"))
    assert caught.value.attempts == 1
    assert asked.models == ["L"]


def test_a_pause_that_does_not_fit_the_caller_s_time_is_not_begun() -> None:
    asked = Asked()
    with pytest.raises(ModelUnavailable):
        asyncio.run(asked.chat(BROKEN, GOOD, within=timedelta(seconds=0.5)))
    assert asked.pauses == []


def test_the_caller_s_time_limits_a_call_too() -> None:
    asked = Asked()
    with pytest.raises(ModelTimeout, match=r"within \d\dms"):
        asyncio.run(asked.chat([SILENCE], within=timedelta(milliseconds=50)))


def test_calls_beyond_the_limit_wait_before_their_time_runs() -> None:
    async def scenario() -> None:
        async with (
            ModelServer([SILENCE], GOOD) as server,
            ModelClient(base_url=server.url) as client,
        ):
            calls = ModelCalls(client=client, large="L", at_once=1)
            first = asyncio.create_task(calls.chat("a"))
            await server.asked.wait()
            with pytest.raises(ModelTimeout, match="no place among 1 model calls"):
                await calls.chat("b", within=timedelta(milliseconds=50))
            assert len(server.requests) == 1
            first.cancel()
            assert (await calls.chat("c")).text == "Hello there"

    asyncio.run(scenario())
