"""A link to the server that can be cut, silenced, or lose a reply: TCP in front of its socket."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHUNK = 1 << 16


class Proxy:
    """Passes everything on until it is told otherwise; any thread may tell it."""

    def __init__(self, target: Path, *, seed: int = 0) -> None:
        self._target = target
        self._random = random.Random(seed)  # noqa: S311 -- a seed repeats a failure
        self._open = threading.Event()
        self._open.set()
        self.losing = b""
        """Of a request that contains this the reply may be lost, and its link is cut; "": of none."""
        self.share = 1.0
        """Of such replies this share is lost."""
        self.lost = 0
        """Replies lost so far."""
        self._links: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._instead = b""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._run, name="proxy")

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"agentq://127.0.0.1:{self._port}/0"

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Pass nothing on, and close nothing: a black hole."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    @contextmanager
    def answering(self, instead: bytes) -> Iterator[None]:
        """Be another service: each link, old or new, is told *instead* and closed."""
        self._loop.call_soon_threadsafe(self._turn_into, instead)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._turn_into, b"")

    def _turn_into(self, instead: bytes) -> None:
        self._instead = instead
        for client in self._clients if instead else ():
            client.write(instead)
            client.close()

    def cut(self) -> None:
        """Cut all links there are."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for link in self._links:
            link.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._link, "127.0.0.1", 0))
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        self._cut()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join one client to a link of its own to the server."""
        if self._instead:
            writer.write(self._instead)
            writer.close()
            return
        with suppress(OSError, asyncio.CancelledError):  # cancelled: the proxy stops
            behind, ahead = await asyncio.open_unix_connection(self._target)
            self._links |= {writer, ahead}
            self._clients.add(writer)
            doomed = asyncio.Event()
            ways = (self._up(reader, ahead, doomed), self._down(behind, writer, doomed))
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                self._links -= {writer, ahead}
                self._clients.discard(writer)
                ahead.close()
        writer.close()

    async def _up(
        self, reader: asyncio.StreamReader, ahead: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._passed()
                if self.losing and self.losing in data and self._random.random() < self.share:
                    doomed.set()
                ahead.write(data)
                await ahead.drain()

    async def _down(
        self, behind: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await behind.read(_CHUNK):
                await self._passed()
                if doomed.is_set():
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()

    async def _passed(self) -> None:
        while not self._open.is_set():  # noqa: ASYNC110 -- set by other threads
            await asyncio.sleep(0.02)


@contextmanager
def proxy_to(target: Path, *, seed: int = 0) -> Iterator[Proxy]:
    """Stand between clients and the server that listens at *target*."""
    proxy = Proxy(target, seed=seed)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
