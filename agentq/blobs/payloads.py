"""Payloads on their way to the store and back: named, bounded, checked, within a time limit.

A store may hang (a share whose server is gone): calls run in a few threads of their own, and who
waits for one waits for `blobs.timeout` at most. So an event loop never blocks, a producer is never
stuck, each process can end, and a fan-in of a thousand large outcomes reads a few at a time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from itertools import islice
from typing import Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from agentq.blobs.reference import Reference, day_of
from agentq.blobs.store import BlobStore, Founded, NeverHere
from agentq.blobs.threads import Threads
from agentq.clock import format_duration
from agentq.errors import BlobAltered, BlobMissing, BlobsUnavailable, PayloadTooLarge

T = TypeVar("T")

AT_ONCE = 8
"""Reads or writes of one process at a time."""

_NO_STORE = (
    "set blobs.directory to a folder that every machine of the cell shares, or pass a reference "
    "(a path, a key) instead"
)


class Cell(Protocol):
    """What the cell knows of its blobs as a whole; may ask the broker."""

    def id(self) -> str:
        """Return what tells the cell from all others, ever."""
        ...

    def begun(self) -> bool:
        """Whether a blob was ever written."""
        ...

    def begin(self) -> None:
        """Let it be known that one was."""
        ...


class Blobs:
    """The payloads of one cell; safe between threads, and in a forked child."""

    def __init__(
        self,
        *,
        store: BlobStore | None,
        cell: Cell,
        max_payload: int,
        max_size: int,
        timeout: timedelta,
    ) -> None:
        """Keep the parts; nothing is opened yet.

        Args:
            store: None: what is too large is refused.
            cell: whose they are.
            max_payload: bytes of what is kept in Redis, for the text of a refusal.
            max_size: most bytes of a blob.
            timeout: of one read or write.
        """
        self.store = store
        self.cell = cell
        self._begun = ""
        self._max_payload = max_payload
        self._max_size = max_size
        self._timeout = timeout
        self._threads: tuple[int, Threads] | None = None
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def refer(self, run: str, data: bytes, *, what: str) -> str:
        """Return the reference to *data*, JSON of *run*; it is not written yet.

        Raises:
            PayloadTooLarge: there is no store, or it is larger than `blobs.max_size`; the text
                begins with *what*.
        """
        size = len(data)
        if self.store is None:
            raise PayloadTooLarge(
                f"{what}: {size} bytes as JSON; broker.max_payload is {self._max_payload}: "
                f"{_NO_STORE}"
            )
        if size > self._max_size:
            raise PayloadTooLarge(
                f"{what}: {size} bytes as JSON; blobs.max_size is {self._max_size}: pass a "
                "reference (a path, a key) instead"
            )
        return str(Reference.to(data, owner=run, day=day_of(time.time())))

    # -- blocking ---------------------------------------------------------------------------------

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """Write *blobs*, by their references.

        Raises:
            BlobsUnavailable: the store can not be written, or not in time; again is safe.
        """
        self._each(self._put, blobs.items())

    def get(self, reference: str) -> bytes:
        """Return a payload.

        Raises:
            BlobMissing, BlobAltered: it is lost.
            BlobsUnavailable: the store can not be read, or not in time.
        """
        [data] = self._each(self._get, [(reference,)])
        return data

    def _each(self, function: Callable[..., T], calls: Iterable[tuple[object, ...]]) -> list[T]:
        """Call *function* in threads, a few at a time, each within the time limit."""
        results: list[T] = []
        calls = iter(calls)
        while some := list(islice(calls, AT_ONCE)):
            futures = [self._start(function, *call) for call in some]
            for future in futures:
                try:
                    results.append(future.result(self._timeout.total_seconds()))
                except TimeoutError as error:
                    raise self._late() from error
        return results

    # -- awaitable --------------------------------------------------------------------------------

    async def aput(self, blobs: Mapping[str, bytes]) -> None:
        """Write *blobs*; errors as in `put`."""
        await asyncio.gather(*(self._waited(self._put, *blob) for blob in blobs.items()))

    async def aget(self, reference: str) -> bytes:
        """Return a payload; errors as in `get`."""
        return await self._waited(self._get, reference)

    async def _waited(self, function: Callable[..., T], *args: object) -> T:
        loop = asyncio.get_running_loop()
        async with self._free.setdefault(loop, asyncio.Semaphore(AT_ONCE)):
            future = asyncio.wrap_future(self._start(function, *args))
            try:
                return await asyncio.wait_for(future, self._timeout.total_seconds())
            except TimeoutError as error:
                raise self._late() from error

    # -- in a thread ------------------------------------------------------------------------------

    def _start(self, function: Callable[..., T], *args: object) -> Future[T]:
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = (os.getpid(), Threads(count=AT_ONCE))
        return self._threads[1].start(function, *args)

    def _put(self, reference: str, data: bytes) -> None:
        store = self._kept()
        cell = self.cell.id()
        try:
            self._put_in(store, cell, reference, data)
        except OSError as error:
            raise BlobsUnavailable(f"{store.place} can not be written: {_said(error)}") from error
        if self._begun != cell:
            self.cell.begin()
            self._begun = cell

    def _put_in(self, store: BlobStore, cell: str, reference: str, data: bytes) -> None:
        """Write; a place where nothing of the cell is takes the cell's first blob only."""
        name = f"{cell}/{reference}"
        try:
            store.put(name, data)
        except NeverHere:
            if self.cell.begun():
                raise
            cast("Founded", store).begin(cell)  # who raises it can
            store.put(name, data)

    def _get(self, reference: str) -> bytes:
        store = self._kept()
        try:
            wanted = Reference.parse(reference)
        except ValueError as error:
            raise BlobMissing(str(error)) from error
        if wanted.size > self._max_size:
            raise BlobMissing(f"blob {reference} is larger than blobs.max_size, {self._max_size}")
        try:
            data = store.get(f"{self.cell.id()}/{wanted}")
        except FileNotFoundError as error:
            raise BlobMissing(f"blob {reference} is not in {store.place}") from error
        except OSError as error:
            raise BlobsUnavailable(f"{store.place} can not be read: {_said(error)}") from error
        if not wanted.fits(data):
            raise BlobAltered(f"blob {reference} in {store.place} is not what was stored there")
        return data

    def _kept(self) -> BlobStore:
        if self.store is None:
            raise BlobsUnavailable(
                "blobs.store is none here: set blobs.directory to the folder that the others use"
            )
        return self.store

    def _late(self) -> BlobsUnavailable:
        limit = format_duration(self._timeout)
        return BlobsUnavailable(f"{self._kept().place} did not answer within {limit}")


def _said(error: OSError) -> str:
    return error.strerror or str(error)
