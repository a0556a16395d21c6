"""The client of any server that speaks the OpenAI API: vLLM, TGI, llama.cpp, or a paid one.

Chat is always streamed, also when nobody reads the pieces: closing a stream is what makes a server
stop. Measured on llama.cpp: 0.1 s after a stream is closed its slot is free, while a cancelled
call that was not streamed runs on to its last token.

There is one owner of retries, `calls`; nothing here or beneath tries again on its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import httpx2
import orjson

from agentq.clock import format_duration
from agentq.errors import ModelAnswerInvalid, ModelTimeout, ModelUnavailable, SettingsError
from agentq.inference.refusal import raise_for_status
from agentq.inference.reply import Reply, ReplyBuilder

Messages = str | Sequence[Mapping[str, Any]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ModelClient:
    """One pool of connections to one model server, bound to the event loop that started it."""

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str | None = None,
        timeout: timedelta = timedelta(seconds=30),
        idle_timeout: timedelta = timedelta(seconds=15),
        connect_timeout: timedelta = timedelta(seconds=2),
        connections: int = 100,
    ) -> None:
        """Take the parts; nothing is opened before `start`.

        Args:
            base_url: with or without the trailing ``/v1``.
            api_key: sent as a bearer token; never part of an error.
            timeout: for a whole call, its wait for a free connection included.
            idle_timeout: longest silence between two chunks; the first may take the whole
                `timeout`, for a busy server queues.
            connect_timeout: for opening a connection.
            connections: how many at once; calls beyond wait.

        Raises:
            SettingsError: *base_url* is no HTTP URL.
        """
        self.base_url = _api_root(base_url)
        self._api_key = api_key
        self.timeout = timeout
        self._idle_timeout = idle_timeout
        self._connect_timeout = connect_timeout
        self._connections = connections
        self._http: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Bind to the running loop; safe twice. Connections are opened when first needed."""
        if self._http is None:
            self._loop = asyncio.get_running_loop()
            self._http = self._open()

    async def close(self) -> None:
        """Close all connections, calls under way included; safe twice."""
        http, self._http, self._loop = self._http, None, None
        if http is not None:
            await http.aclose()

    async def __aenter__(self) -> Self:
        """Start it."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    async def chat(
        self,
        messages: Messages,
        *,
        model: str,
        max_tokens: int,
        temperature: float = 0.0,
        stop: Sequence[str] | None = None,
        timeout: timedelta | None = None,  # noqa: ASYNC109 -- ends with a typed, named error
    ) -> Reply:
        """Return the model's answer to *messages* (a text is one message of the user's).

        Cancelling the call closes the stream, which frees the server's slot.

        Raises:
            ModelUnavailable, ModelTimeout, ModelRateLimited, ModelRefused, ModelAnswerInvalid
        """
        body: dict[str, Any] = {
            "model": model,
            "messages": _as_messages(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if stop:
            body["stop"] = list(stop)
        builder = ReplyBuilder(self._name("chat/completions"))
        async with self._call("chat/completions", body, timeout or self.timeout) as response:
            async for chunk in self._chunks(response):
                builder.add(chunk)
        return builder.reply()

    async def embed(
        self,
        texts: Sequence[str],
        *,
        model: str,
        timeout: timedelta | None = None,  # noqa: ASYNC109 -- ends with a typed, named error
    ) -> list[list[float]]:
        """Return one vector for each text, in their order, all of one length.

        Raises:
            ModelUnavailable, ModelTimeout, ModelRateLimited, ModelRefused, ModelAnswerInvalid
        """
        if not texts:
            return []
        body = {"model": model, "input": list(texts), "encoding_format": "float"}
        async with self._call("embeddings", body, timeout or self.timeout) as response:
            content = await response.aread()
        return _vectors(content, count=len(texts), call=self._name("embeddings"))

    @contextlib.asynccontextmanager
    async def _call(
        self, path: str, body: dict[str, Any], limit: timedelta
    ) -> AsyncIterator[httpx2.Response]:
        """Send, hand out the response while it comes in, and translate what goes wrong."""
        call, http = self._name(path), self._started()
        seconds = limit.total_seconds()
        waits = httpx2.Timeout(seconds, connect=self._connect_timeout.total_seconds())
        clock = asyncio.timeout(seconds)
        try:
            async with (
                clock,
                http.stream("POST", path, content=orjson.dumps(body), timeout=waits) as response,
            ):
                await raise_for_status(response, call)
                yield response
        except (TimeoutError, httpx2.PoolTimeout, httpx2.ReadTimeout, httpx2.WriteTimeout):
            raise ModelTimeout(
                f"{call} has not answered in full within {format_duration(limit)}"
                f"{' (model.timeout)' if limit == self.timeout else ''}",
                call=call,
            ) from None
        except httpx2.ConnectTimeout:
            raise ModelUnavailable(
                f"{call}: no connection within {format_duration(self._connect_timeout)} "
                "(model.connect_timeout)",
                call=call,
            ) from None
        except httpx2.ConnectError as error:
            raise ModelUnavailable(
                f"{call}: no connection ({_first(error)}); is the server up, "
                "is model.base_url right?",
                call=call,
            ) from None
        except httpx2.RequestError as error:
            raise ModelUnavailable(
                f"{call} broke off ({type(error).__name__}: {error})", call=call
            ) from None

    async def _chunks(self, response: httpx2.Response) -> AsyncIterator[object]:
        """Yield the decoded events of a stream until its ``[DONE]`` or its end."""
        call, limit = self._name("chat/completions"), self._idle_timeout
        try:
            events = aiter(httpx2.EventSource(response))
            clock = asyncio.timeout(None)  # the first may take what the whole call may
            while True:
                async with clock:
                    event = await anext(events, None)
                if event is None or event.data == "[DONE]":
                    return
                yield orjson.loads(event.data)
                clock = asyncio.timeout(limit.total_seconds())
        except TimeoutError:
            if not clock.expired():
                raise
            raise ModelTimeout(
                f"{call} fell silent for {format_duration(limit)} (model.idle_timeout)", call=call
            ) from None
        except (orjson.JSONDecodeError, httpx2.SSEError) as error:
            raise ModelAnswerInvalid(f"{call} did not stream events: {error}", call=call) from None

    def _open(self) -> httpx2.AsyncClient:
        url = httpx2.URL(self.base_url)
        return httpx2.AsyncClient(
            base_url=url,
            headers={
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}),
            },
            limits=httpx2.Limits(
                max_connections=self._connections, max_keepalive_connections=self._connections
            ),
            # A proxy from the environment cannot reach a server on this machine's loopback.
            trust_env=url.host not in LOOPBACK,
        )

    def _started(self) -> httpx2.AsyncClient:
        if self._http is None:
            raise RuntimeError("the model client is not started: await client.start()")
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("the model client was started on another event loop: one per loop")
        return self._http

    def _name(self, path: str) -> str:
        url = httpx2.URL(self.base_url).copy_with(userinfo=b"")
        return f"POST {str(url).rstrip('/')}/{path}"


def _first(error: BaseException) -> BaseException:
    """Return what began it: the socket's own error, which says more than those around it."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def _api_root(base_url: str) -> str:
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise SettingsError(f"model.base_url {base_url!r} is no URL: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise SettingsError(
            f"model.base_url {base_url!r} is no HTTP URL; write http://host:port or https://host/v1"
        )
    root = base_url.rstrip("/")
    return root if root.endswith("/v1") else f"{root}/v1"


def _as_messages(messages: Messages) -> list[dict[str, Any]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [dict(message) for message in messages]


def _vectors(content: bytes, *, count: int, call: str) -> list[list[float]]:
    try:
        rows = sorted(orjson.loads(content)["data"], key=lambda row: row["index"])
        vectors: list[list[float]] = [row["embedding"] for row in rows]
        indices = [row["index"] for row in rows]
        sizes = {len(vector) for vector in vectors}
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise ModelAnswerInvalid(
            f"{call} answered with no embeddings: {content[:200]!r}", call=call
        ) from error
    if indices != list(range(count)) or len(sizes) != 1:
        raise ModelAnswerInvalid(
            f"{call} answered with {len(vectors)} vectors of sizes {sorted(sizes)} "
            f"for {count} texts",
            call=call,
        )
    return vectors
