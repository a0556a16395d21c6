"""A real HTTP server on loopback that answers each request with the next of its scripted moves.

A move is written as the raw bytes of a response, pauses in between, so that a test can break off,
fall silent or lie at any byte. What was asked is kept for the test to look at.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Self

SILENCE = object()  # say nothing more, and keep the connection open
Move = Iterable[bytes | object]


def response(status: int, body: object, **headers: str) -> list[bytes]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ["\r\n".join(lines).encode() + b"\r\n\r\n" + content]


def stream(*events: object) -> list[bytes]:
    """Return the head of an event stream and one piece for each of *events*."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return [head, *(f"data: {text}\n\n".encode() for text in texts)]


def said(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {
        "model": "tiny",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}],
    }


USAGE = {"model": "tiny", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
GOOD = stream(said("Hello"), said(" there"), said(None, "stop"), USAGE, "[DONE]")


class ModelServer:
    def __init__(self, *moves: Move) -> None:
        self.moves = list(moves)
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.hung_up = asyncio.Event()
        self.asked = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines if line)
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append((first, headers, json.loads(body)))
            self.asked.set()
            for piece in self.moves.pop(0):
                if not isinstance(piece, bytes):
                    await reader.read()  # until the client hangs up
                    self.hung_up.set()
                    return
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        finally:
            writer.close()
