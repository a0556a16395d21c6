"""A run in its submitter's hand: wait for it, watch it, cancel it; blocking and awaitable.

Waiting reads the run's event stream (`XREAD BLOCK`), which survives a break: a reader goes on
behind the last event it saw, and the end is an event. A broker that goes away while somebody waits
(a failover, a restart) has as long as one call may take to come back.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import orjson

from agentq.blobs import Blobs
from agentq.clock import DurationLike, format_duration
from agentq.errors import (
    BrokerUnavailable,
    DeadlineExceeded,
    RunCancelled,
    RunFailed,
    RunNotFound,
    WaitTimeout,
)
from agentq.runs.options import duration_of
from agentq.runs.record import (
    RunEvent,
    RunState,
    RunStatus,
    events_of,
    instant_of,
    status_of,
)
from agentq.store import calls
from agentq.store.client import AsyncStore, Store

T = TypeVar("T")

BLOCK_MS = 1000
"""How long one read waits at most; never more than half the time limit of a call."""

_FROM_START = "0-0"
_NO_WAIT = 0
_NO_LIMIT = timedelta(days=3650)

Passing = type[Exception] | tuple[type[Exception], ...]
_AWAY = (BrokerUnavailable, RunNotFound)
"""What passes of a run that was there: a primary that was just demoted reads its data anew."""


class RunHandle:
    """One run; made by `submit`, or by `AgentQ.run` from an id."""

    def __init__(  # noqa: PLR0913 -- its parts
        self,
        *,
        run_id: str,
        store: Store,
        async_store: Callable[[], AsyncStore],
        decode: Callable[[bytes], Any],
        blobs: Blobs,
        keep_ms: int,
        duplicate: bool = False,
        load: calls.Load | None = None,
    ) -> None:
        """Keep the parts; nothing is asked yet."""
        self.id = run_id
        self.duplicate = duplicate
        """Whether the run existed already when it was submitted: the same key."""
        self.fill = load.fill if load else None
        """How full the queue was, 0-1, by the worst of its caps; None where nothing was put in."""
        self.expected_wait = load.expected_wait if load else None
        """How long the first step will wait at the pool's present rate; None: not known."""
        self._store = store
        self._async_store = async_store
        self._decode = decode
        self._blobs = blobs
        self._keep_ms = keep_ms
        limit = store.timeout.total_seconds() * 500 if store.timeout else BLOCK_MS
        self._block_ms = max(1, min(BLOCK_MS, int(limit)))

    def __repr__(self) -> str:
        """Return the id."""
        return f"RunHandle({self.id!r})"

    # -- blocking ---------------------------------------------------------------------------------

    def status(self) -> RunStatus:
        """Return what is known of the run.

        Raises:
            RunNotFound: it never was, or was kept for `runs.keep` and is gone.
            BrokerUnavailable: no answer in time.
        """
        status = self._status(self._store.command("HGETALL", self._store.keys.run(self.id)))
        return status.at(instant_of(self._store.command("TIME"))) if status.ends_by_time else status

    def result(self, timeout: DurationLike | None = None) -> Any:
        """Wait for the run's end and return its value.

        Raises:
            RunFailed, RunCancelled, DeadlineExceeded: how it ended instead.
            WaitTimeout: it runs on; RunNotFound; BrokerUnavailable; InvalidOption.
            BlobMissing, BlobsUnavailable: the value is a blob that can not be read.
        """
        limit = duration_of("timeout", timeout) if timeout is not None else _NO_LIMIT
        until = time.monotonic() + limit.total_seconds()
        status = self._patiently(self.status)
        last = _FROM_START
        while not status.state.ended:
            left = until - time.monotonic()
            if left <= 0:
                raise self._waited(limit)
            wait_ms = min(self._block_ms, int(left * 1000) + 1)
            events = self._patiently(partial(self._read, last, wait_ms))
            if events:
                last = events[-1].id
            if not events or events[-1].kind == "end":
                status = self._patiently(self.status, _AWAY)
        reference = status.reference
        return self._value(status, self._blobs.get(reference) if reference else status.result)

    def events(self, *, after: str = _FROM_START) -> Iterator[RunEvent]:
        """Yield the run's events as they come, from behind *after* to its end."""
        while True:
            events = self._patiently(partial(self._read, after, self._block_ms))
            for event in events:
                yield event
                if event.kind == "end":
                    return
                after = event.id
            if not events and self._patiently(self.status, _AWAY).state.ended:
                return

    def history(self) -> tuple[RunEvent, ...]:
        """Return the events so far, without waiting for more; errors as in `status`."""
        found: list[RunEvent] = []
        while events := self._read(found[-1].id if found else _FROM_START, _NO_WAIT):
            found += events
        return tuple(found)

    def cancel(self) -> bool:
        """Cancel the run; return whether this call ended it.

        Raises:
            RunNotFound, BrokerUnavailable
        """
        return self._cancelled(self._store.call(self._cancel_call()))

    def _patiently(self, ask: Callable[[], T], passing: Passing = BrokerUnavailable) -> T:
        """Return the answer of *ask*, which only reads; asked again while a broker comes back."""
        until = self._patience()
        while True:
            try:
                return ask()
            except passing:
                if time.monotonic() >= until:
                    raise
            time.sleep(_pause())

    # -- awaitable --------------------------------------------------------------------------------

    async def astatus(self) -> RunStatus:
        """Return what is known of the run; errors as in `status`."""
        store = self._async_store()
        status = self._status(await store.command("HGETALL", store.keys.run(self.id)))
        return status.at(instant_of(await store.command("TIME"))) if status.ends_by_time else status

    async def aresult(self, timeout: DurationLike | None = None) -> Any:  # noqa: ASYNC109 -- typed
        """Wait for the run's end and return its value; errors as in `result`."""
        limit = duration_of("timeout", timeout) if timeout is not None else _NO_LIMIT
        until = time.monotonic() + limit.total_seconds()
        status = await self._apatiently(self.astatus)
        last = _FROM_START
        while not status.state.ended:
            left = until - time.monotonic()
            if left <= 0:
                raise self._waited(limit)
            wait_ms = min(self._block_ms, int(left * 1000) + 1)
            events = await self._apatiently(partial(self._aread, last, wait_ms))
            if events:
                last = events[-1].id
            if not events or events[-1].kind == "end":
                status = await self._apatiently(self.astatus, _AWAY)
        reference = status.reference
        data = await self._blobs.aget(reference) if reference else status.result
        return self._value(status, data)

    async def aevents(self, *, after: str = _FROM_START) -> AsyncIterator[RunEvent]:
        """Yield the run's events as they come, from behind *after* to its end."""
        while True:
            events = await self._apatiently(partial(self._aread, after, self._block_ms))
            for event in events:
                yield event
                if event.kind == "end":
                    return
                after = event.id
            if not events and (await self._apatiently(self.astatus, _AWAY)).state.ended:
                return

    async def acancel(self) -> bool:
        """Cancel the run; return whether this call ended it."""
        return self._cancelled(await self._async_store().call(self._cancel_call()))

    async def _apatiently(
        self, ask: Callable[[], Awaitable[T]], passing: Passing = BrokerUnavailable
    ) -> T:
        """Do what `_patiently` does."""
        until = self._patience()
        while True:
            try:
                return await ask()
            except passing:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(_pause())

    # -- both -------------------------------------------------------------------------------------

    def _patience(self) -> float:
        limit = self._store.timeout
        return time.monotonic() + limit.total_seconds() if limit else math.inf

    def _waited(self, limit: timedelta) -> WaitTimeout:
        return WaitTimeout(
            f"run {self.id} had not ended after {format_duration(limit)}; it goes on"
        )

    def _read(self, after: str, block_ms: int) -> list[RunEvent]:
        return _events(self._store.command(*self._xread(after, block_ms)))

    async def _aread(self, after: str, block_ms: int) -> list[RunEvent]:
        return _events(await self._async_store().command(*self._xread(after, block_ms)))

    def _xread(self, after: str, block_ms: int) -> tuple[Any, ...]:
        key = self._store.keys.events(self.id)
        wait = ("BLOCK", block_ms) if block_ms else ()  # BLOCK 0 would be for ever
        return ("XREAD", "COUNT", 500, *wait, "STREAMS", key, after)

    def _cancel_call(self) -> calls.Call:
        return calls.cancel(self._store.keys.prefix, self.id, self._keep_ms)

    def _cancelled(self, reply: int) -> bool:
        if reply < 0:
            raise RunNotFound(f"no run {self.id!r} is known")
        return bool(reply)

    def _status(self, fields: dict[bytes, bytes]) -> RunStatus:
        if not fields:
            raise RunNotFound(f"no run {self.id!r} is known; it may have been kept and be gone")
        return status_of(self.id, fields)

    def _value(self, status: RunStatus, data: bytes) -> Any:
        match status.state:
            case RunState.DONE:
                return self._decode(data)
            case RunState.FAILED:
                raise self._failure(status)
            case RunState.CANCELLED:
                raise RunCancelled(f"run {self.id} was cancelled")
            case RunState.EXPIRED:
                raise DeadlineExceeded(f"run {self.id} did not end before its deadline")
            case RunState.RUNNING:
                raise BrokerUnavailable(f"run {self.id} ended and runs again: another server?")

    def _failure(self, status: RunStatus) -> RunFailed:
        error = orjson.loads(status.result) or {}
        return RunFailed(
            self.id,
            step=error.get("step", ""),
            kind=error.get("kind", ""),
            message=error.get("message", ""),
        )


def _pause() -> float:
    """Return the seconds until the next try, spread, so that not all who wait come at once."""
    return random.uniform(0.05, 0.15)  # noqa: S311


def _events(reply: Any) -> list[RunEvent]:
    """Read XREAD's answer in either protocol version."""
    if not reply:
        return []
    streams = list(reply.values()) if isinstance(reply, dict) else [pair[1] for pair in reply]
    entries = streams[0]
    if entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], list):
        entries = entries[0]  # RESP3 wraps once more
    result = []
    for entry_id, fields in entries:
        if not isinstance(fields, dict):
            fields = dict(zip(fields[::2], fields[1::2], strict=True))  # noqa: PLW2901
        result += events_of(entry_id, fields)
    return result
