"""The HTTP front: answers embeddings itself and passes chat through to llama.cpp's own server.

POST /v1/chat/completions   passed through byte by byte; a client that hangs up hangs up there
POST /v1/embeddings         computed here, one request at a time, on a thread
GET  /v1/models  /health    what is served, and that it is
GET  /slots                 passed through: what llama.cpp is doing
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import h11
import orjson

from agentq.inference.server import wire
from agentq.inference.server.embedding import Embedder

T = TypeVar("T")

_CHUNK = 65536
_LARGEST_BODY = 8 * 2**20
_MOST_TEXTS = 256  # in one request; batches of 16 are what pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the front has to offer; for what is None, the reason.

    Attributes:
        chat: name of the chat model.
        chat_socket: where llama.cpp's server listens.
        chat_missing: which package is missing, and how to install it.
        embedder: loaded.
        embedder_missing: as for chat.
    """

    chat: str | None
    chat_socket: Path
    chat_missing: str
    embedder: Embedder | None
    embedder_missing: str

    @property
    def names(self) -> list[str]:
        """The models by name."""
        embedding = self.embedder.name if self.embedder else None
        return [name for name in (self.chat, embedding) if name]


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: bytes


class Front:
    """An HTTP/1.1 server on this machine's loopback."""

    def __init__(self, served: Served) -> None:
        """Take what is served; `start` opens the port."""
        self._served = served
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embed")
        self._routes: dict[tuple[str, str], Callable[[_Request], Awaitable[wire.Answer]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/embeddings"): self._embed,
        }

    async def start(self, port: int) -> str:
        """Listen on 127.0.0.1, port 0 for any free one; return the API's base URL.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def stop(self) -> None:
        """Hang up on everybody; safe twice."""
        if self._server:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        # Cancelled only by `stop`; asyncio's own callback would report that as an error.
        ends = (ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError)
        with contextlib.suppress(*ends):
            await _Connection(reader, writer).serve(self._answer, self._passed_through)
        writer.close()

    def _passed_through(self, request: _Request) -> Path | None:
        """Return the socket that answers *request* instead of us."""
        served = self._served
        match request.method, request.path:
            case "POST", "/v1/chat/completions":
                if served.chat is None:
                    raise wire.no_model(served.chat_missing)
                wire.require_model(wire.parse(request.body), served.chat)
                return served.chat_socket
            case "GET", "/slots" if served.chat:
                return served.chat_socket
            case _:
                return None

    async def _answer(self, request: _Request) -> wire.Answer:
        route = self._routes.get((request.method, request.path))
        if route is None:
            raise wire.BadRequest(
                HTTPStatus.NOT_FOUND, f"{request.method} {request.path} is not served here"
            )
        return await route(request)

    async def _health(self, _: _Request) -> wire.Answer:
        return wire.Answer(HTTPStatus.OK, {"status": "ok", "models": self._served.names})

    async def _models(self, _: _Request) -> wire.Answer:
        return wire.models(self._served.names)

    async def _embed(self, request: _Request) -> wire.Answer:
        embedder = self._served.embedder
        if embedder is None:
            raise wire.no_model(self._served.embedder_missing)
        parsed = wire.parse(request.body)
        wire.require_model(parsed, embedder.name)
        texts = wire.texts_of(parsed, limit=_MOST_TEXTS)
        loop = asyncio.get_running_loop()
        vectors, tokens = await loop.run_in_executor(self._thread, embedder.embed, texts)
        return wire.embeddings(embedder.name, vectors, tokens)


class _Connection:
    """One client: reads requests, writes answers, until either side has enough."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)

    async def serve(
        self,
        answer: Callable[[_Request], Awaitable[wire.Answer]],
        passed_through: Callable[[_Request], Path | None],
    ) -> None:
        while True:
            try:
                request = await self._request()
                if request is None:
                    return
                if socket := passed_through(request):
                    await self._pass_through(request, socket)
                    return
                await self._send(await self._unless_gone(answer(request)))
            except wire.BadRequest as refused:
                await self._send(refused.answer())
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def _request(self) -> _Request | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    proceed = h11.InformationalResponse(status_code=100, headers=[])
                    self._writer.write(self._http.send(proceed) or b"")
                self._http.receive_data(await self._reader.read(_CHUNK))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _LARGEST_BODY:
                    raise wire.BadRequest(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        f"the body is larger than {_LARGEST_BODY} bytes",
                    )
            elif isinstance(event, h11.EndOfMessage) and head:
                path = head.target.decode("ascii").partition("?")[0]
                return _Request(head.method.decode("ascii"), path, bytes(body))
            else:  # the client has closed
                return None

    async def _send(self, answer: wire.Answer) -> None:
        content = orjson.dumps(answer.body)
        head = h11.Response(
            status_code=answer.status,
            headers=[
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(content))),
            ],
        )
        for event in (head, h11.Data(data=content), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()

    async def _pass_through(self, request: _Request, socket: Path) -> None:
        """Give the request to the server behind *socket*, and back whatever it says, as it says it.

        Its answer ends with its connection, so the client's ends too.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(socket)
        except OSError as error:
            raise wire.BadRequest(
                HTTPStatus.SERVICE_UNAVAILABLE, f"the chat model has gone: {error}"
            ) from error
        try:
            writer.write(
                f"{request.method} {request.path} HTTP/1.1\r\nHost: localhost\r\n"
                "Connection: close\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(request.body)}\r\n\r\n".encode()
            )
            writer.write(request.body)
            await self._unless_gone(self._copy(reader))
        finally:
            writer.close()

    async def _copy(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_CHUNK):
            self._writer.write(data)
            await self._writer.drain()

    async def _unless_gone(self, work: Awaitable[T]) -> T:
        """Return what *work* does, or cancel it as soon as the client hangs up.

        Raises:
            ConnectionResetError: the client hung up.
        """
        doing = asyncio.ensure_future(work)
        listening = asyncio.ensure_future(self._reader.read(_CHUNK))
        try:
            await asyncio.wait({doing, listening}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                if not (data := listening.result()):
                    raise ConnectionResetError("the client hung up")
                self._http.receive_data(data)  # it is early with its next request
            return await doing
        finally:
            listening.cancel()
            doing.cancel()
            await asyncio.wait({doing, listening})  # two may not read at the same time
