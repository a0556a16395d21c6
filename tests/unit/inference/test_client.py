from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import httpx2
import pytest

from agentq.errors import (
    ModelAnswerInvalid,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    SettingsError,
)
from agentq.inference.client import ModelClient
from agentq.inference.refusal import retry_after
from agentq.inference.reply import Reply
from tests.unit.inference.model_server import (
    GOOD,
    SILENCE,
    ModelServer,
    Move,
    response,
    said,
    stream,
)

T = TypeVar("T")
Scenario = Callable[[ModelServer, ModelClient], Coroutine[Any, Any, T]]


def played(
    *moves: Move,
    scenario: Scenario[T],
    **options: Any,
) -> T:
    async def play() -> T:
        async with (
            ModelServer(*moves) as server,
            ModelClient(base_url=server.url, **options) as client,
        ):
            return await scenario(server, client)

    return asyncio.run(play())


async def hello(_: ModelServer, client: ModelClient) -> Reply:
    return await client.chat("Hi", model="tiny", max_tokens=8)


def test_chat_returns_the_streamed_text_with_usage_and_the_reason_it_ended() -> None:
    reply = played(GOOD, scenario=hello)
    assert reply == Reply(
        text="Hello there",
        model="tiny",
        prompt_tokens=7,
        completion_tokens=2,
        finish_reason="stop",
    )


def test_chat_always_asks_for_a_stream_with_usage() -> None:
    async def scenario(server: ModelServer, client: ModelClient) -> tuple[str, dict[str, Any]]:
        await client.chat("Hi", model="tiny", max_tokens=8, temperature=0.5, stop=["\n"])
        first, _, body = server.requests[0]
        return first, body

    first, body = played(GOOD, scenario=scenario)
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 8,
        "temperature": 0.5,
        "stop": ["\n"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_key_is_sent_and_never_part_of_an_error() -> None:
    async def scenario(server: ModelServer, client: ModelClient) -> tuple[str, str]:
        with pytest.raises(ModelRefused) as caught:
            await hello(server, client)
        return server.requests[0][1]["authorization"], str(caught.value)

    sent, error = played(response(401, {}), scenario=scenario, api_key="Secret-1")
    assert sent == "bearer secret-1"  # the server lowers its headers
    assert "ecret-1" not in error


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_the_base_url_works_with_and_without_v1(ending: str) -> None:
    assert ModelClient(base_url=f"http://h:8{ending}").base_url == "http://h:8/v1"


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://h/v1", "http://", "http://[::"])
def test_a_base_url_that_is_none_is_refused_by_the_setting_s_name(url: str) -> None:
    with pytest.raises(SettingsError, match=r"model\.base_url"):
        ModelClient(base_url=url)


@pytest.mark.parametrize(
    ("move", "kind", "words"),
    [
        (response(400, {"error": {"message": "too long"}}), ModelRefused, "400: too long"),
        (response(404, {"error": "no such model"}), ModelRefused, "404: no such model"),
        (response(422, {"detail": "x"}), ModelRefused, '{"detail": "x"}'),
        (response(408, b""), ModelTimeout, "408: no reason given"),
        (response(500, b"<html>oops"), ModelUnavailable, "500: <html>oops"),
        (response(503, {"message": "loading"}), ModelUnavailable, "503: loading"),
        (response(504, b""), ModelTimeout, "504"),
        (response(307, b"", location="/x"), ModelAnswerInvalid, "307"),
        (response(200, {"choices": []}), ModelAnswerInvalid, "did not stream events"),
        (stream("nonsense"), ModelAnswerInvalid, "did not stream events"),
        (stream({"hello": 1}), ModelAnswerInvalid, "no chat completion: {'hello': 1}"),
        (stream([1]), ModelAnswerInvalid, r"no chat completion: \[1\]"),
        (stream(said("Hel")), ModelUnavailable, "broke off after 1 chunks"),
        (stream("[DONE]"), ModelUnavailable, "broke off after 0 chunks"),
        (stream({"error": {"code": 400, "message": "full"}}), ModelRefused, "gave up: full"),
        (stream({"error": {"code": 500, "message": "ouch"}}), ModelUnavailable, "gave up: ouch"),
        ([b"HTTP/1.1 200 OK\r\nContent-Le"], ModelUnavailable, "broke off"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], ModelUnavailable, "broke off"),
    ],
)
def test_what_goes_wrong_has_a_type_and_names_the_call(
    move: Move, kind: type[ModelError], words: str
) -> None:
    async def scenario(server: ModelServer, client: ModelClient) -> tuple[ModelError, str]:
        with pytest.raises(kind, match=words) as caught:
            await hello(server, client)
        return caught.value, f"POST {server.url}/v1/chat/completions"

    error, call = played(move, scenario=scenario)
    assert type(error) is kind
    assert error.call == call
    assert call in str(error)


def test_a_429_carries_the_time_the_server_asked_for() -> None:
    with pytest.raises(ModelRateLimited) as caught:
        played(response(429, {}, Retry_After="7"), scenario=hello)
    assert caught.value.retry_after == timedelta(seconds=7)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1.5"}, timedelta(seconds=1.5)),
        ({"retry-after": "9", "retry-after-ms": "250"}, timedelta(milliseconds=250)),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:30 GMT"}, timedelta(seconds=30)),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, timedelta(0)),
    ],
)
def test_retry_after_is_read_as_seconds_milliseconds_or_date(
    headers: dict[str, str], expected: timedelta | None
) -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert retry_after(httpx2.Headers(headers), now=now) == expected


def test_a_server_that_is_not_there_is_unavailable() -> None:
    async def scenario(server: ModelServer, client: ModelClient) -> None:
        await server.close()
        await hello(server, client)

    with pytest.raises(
        ModelUnavailable, match=r"no connection \(\[Errno 111\].* is model\.base_url right"
    ) as away:
        played(scenario=scenario)
    shown = "".join(traceback.format_exception(away.value))
    assert shown.count("Traceback") == 1, "httpx2's own chain says no more"


def test_a_stream_that_falls_silent_ends_at_the_idle_timeout() -> None:
    with pytest.raises(ModelTimeout, match=r"fell silent for 50ms \(model\.idle_timeout\)"):
        played(
            [*stream(said("Hel")), SILENCE],
            scenario=hello,
            idle_timeout=timedelta(milliseconds=50),
        )


def test_the_first_token_may_take_longer_than_the_idle_timeout() -> None:
    with pytest.raises(ModelTimeout, match=r"not answered in full within 200ms \(model\.timeout\)"):
        played(
            [*stream(), SILENCE],
            scenario=hello,
            idle_timeout=timedelta(milliseconds=1),
            timeout=timedelta(milliseconds=200),
        )


def test_cancelling_a_call_hangs_up_on_the_server() -> None:
    async def scenario(server: ModelServer, client: ModelClient) -> bool:
        call = asyncio.create_task(hello(server, client))
        await server.asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.hung_up.wait(), 5)
        return True

    assert played([*stream(said("Hel")), SILENCE], scenario=scenario)


def test_calls_beyond_the_connections_wait_for_one() -> None:
    async def scenario(server: ModelServer, client: ModelClient) -> int:
        first = asyncio.create_task(hello(server, client))
        await server.asked.wait()
        second = asyncio.create_task(hello(server, client))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(second), 0.1)
        seen = len(server.requests)
        first.cancel()
        assert (await second).text == "Hello there"
        return seen

    assert played([SILENCE], GOOD, scenario=scenario, connections=1) == 1


def test_embeddings_come_back_in_the_order_of_the_texts() -> None:
    rows = [{"index": 1, "embedding": [3.0, 4.0]}, {"index": 0, "embedding": [1.0, 2.0]}]

    async def scenario(
        server: ModelServer, client: ModelClient
    ) -> tuple[list[list[float]], dict[str, Any]]:
        vectors = await client.embed(["a", "b"], model="m")
        return vectors, server.requests[0][2]

    vectors, body = played(response(200, {"data": rows}), scenario=scenario)
    assert vectors == [[1.0, 2.0], [3.0, 4.0]]
    assert body == {"model": "m", "input": ["a", "b"], "encoding_format": "float"}


def test_no_texts_are_no_call() -> None:
    async def scenario(_: ModelServer, client: ModelClient) -> list[list[float]]:
        return await client.embed([], model="m")

    assert played(scenario=scenario) == []


@pytest.mark.parametrize(
    "data",
    [
        [{"index": 0, "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}],
        [{"index": 0}, {"index": 1}],
        None,
    ],
)
def test_embeddings_that_do_not_fit_the_texts_are_refused(data: object) -> None:
    async def scenario(_: ModelServer, client: ModelClient) -> None:
        await client.embed(["a", "b"], model="m")

    with pytest.raises(ModelAnswerInvalid):
        played(response(200, {"data": data}), scenario=scenario)


def test_starting_and_closing_twice_is_safe_and_a_closed_client_says_so() -> None:
    async def scenario() -> None:
        client = ModelClient(base_url="http://127.0.0.1:9")
        await client.start()
        await client.start()
        await client.close()
        await client.close()
        with pytest.raises(RuntimeError, match="not started"):
            await client.chat("Hi", model="m", max_tokens=1)

    asyncio.run(scenario())


def test_a_client_belongs_to_one_event_loop() -> None:
    client = ModelClient(base_url="http://127.0.0.1:9")
    asyncio.run(client.start())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(client.chat("Hi", model="m", max_tokens=1))
