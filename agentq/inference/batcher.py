"""Joins calls that come close together into one; each caller gets its own result back.

    submit ──> waiting ──(policy closes a batch)──> running ──> the caller's future
                 │                                     │
                 └─ cancelled or expired: dropped      └─ cancelled: its result is thrown away

One bad item fails alone: when a whole batch raises, it is halved until the culprit stands alone.
Transport errors are not the items' fault and go to all. Nothing here runs a task of its own: each
arrival, each end of a batch and one timer lead to `_consider`, which asks `policy`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from agentq.clock import format_duration
from agentq.errors import (
    BatcherStopped,
    BatchQueueFull,
    ModelAnswerInvalid,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
)
from agentq.inference.policy import BatchLimits, Close, Waiting, choose, decide, mean_gap

ItemT = TypeVar("ItemT")
ValueT = TypeVar("ValueT")

_GROUPS = 1024  # fan-outs that are counted at the same time
_TRANSPORT = (ModelUnavailable, ModelTimeout, ModelRateLimited)


@dataclass(frozen=True, slots=True)
class BatchResult(Generic[ValueT]):
    """One caller's value, and how it came about.

    Attributes:
        value: what the function returned for this item.
        size: items in the call that answered it.
        waited_ms: from `submit` until its batch was closed.
        ran_ms: from then until the value was there.
    """

    value: ValueT
    size: int
    waited_ms: float
    ran_ms: float


@dataclass(slots=True)
class BatchStats:
    """Counts since the start, for a report or a metric; read only.

    Attributes:
        items: answered or failed in a batch.
        sizes: batches by their number of items.
        closed: batches by the reason they were closed for.
        dropped: items cancelled or expired before their batch was closed.
        halved: calls that raised as a whole and were split.
    """

    items: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    closed: Counter[Close] = field(default_factory=Counter)
    dropped: int = 0
    halved: int = 0

    @property
    def mean_size(self) -> float:
        """Items per batch; 0 before the first."""
        batches = self.sizes.total()
        return sum(size * n for size, n in self.sizes.items()) / batches if batches else 0.0


@dataclass(slots=True, eq=False)
class _Entry(Generic[ItemT, ValueT]):
    item: ItemT
    length: int
    came: float  # seconds, monotonic
    group: str | None
    future: asyncio.Future[BatchResult[ValueT]]


class Batcher(Generic[ItemT, ValueT]):
    """Collects items on one event loop and gives them to *run* a batch at a time."""

    def __init__(
        self,
        *,
        name: str,
        run: Callable[[list[ItemT]], Awaitable[Sequence[ValueT | Exception]]],
        limits: BatchLimits | None = None,
        length: Callable[[ItemT], int] = lambda _: 1,
        at_once: int = 1,
        capacity: int = 4096,
    ) -> None:
        """Take the parts; nothing is accepted before `start`.

        Args:
            name: for errors and task names.
            run: returns one value, or one exception, for each item in order. It has to limit its
                own time.
            limits: size, window and cost of a call.
            length: an item's length; items of unlike length are kept apart.
            at_once: batches in `run` at the same time.
            capacity: items waiting; more are refused.
        """
        self.name = name
        self.stats = BatchStats()
        self._run = run
        self._limits = limits or BatchLimits()
        self._length = length
        self._at_once = at_once
        self._capacity = capacity
        self._waiting: list[_Entry[ItemT, ValueT]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._missing: dict[str, int] = {}
        self._gap_ms: float | None = None
        self._item_ms = self._limits.window_ms  # mean time of the backend for an item
        self._newest = 0.0
        self._open = False
        self._wake: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Accept items; safe twice."""
        self._open = True

    async def stop(self) -> None:
        """Refuse items, end what waits and runs with `BatcherStopped`; safe twice."""
        self._open = False
        for handle in (self._wake, self._timer):
            if handle:
                handle.cancel()
        self._wake = self._timer = None
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        waiting, self._waiting = self._waiting, []
        self._missing.clear()
        self._fail(waiting, BatcherStopped(f"batcher {self.name!r} was stopped"))

    async def submit(
        self,
        item: ItemT,
        *,
        timeout: timedelta | None = None,  # noqa: ASYNC109 -- ends with a typed, named error
        group: str | None = None,
        siblings: int = 1,
    ) -> BatchResult[ValueT]:
        """Return the result for *item* once a batch with it has run.

        Args:
            item: what `run` is given.
            timeout: limit for waiting and running together; None for the limit of `run` alone.
            group: names the fan-out this call belongs to, when its width is known.
            siblings: the width of that fan-out, this call included: its batch need not wait for
                the window once all of them are here.

        Raises:
            BatchQueueFull: too many wait. BatcherStopped: not started, or stopped meanwhile.
            ModelTimeout: no result within *timeout*.
            Exception: whatever `run` returned or raised for this item.
        """
        entry = self._admit(item, group, siblings)
        clock = asyncio.timeout(timeout.total_seconds() if timeout is not None else None)
        try:
            async with clock:
                return await entry.future
        except TimeoutError as error:
            if timeout is None or not clock.expired():
                raise
            raise ModelTimeout(
                f"batcher {self.name!r} had no result within {format_duration(timeout)}"
            ) from error
        finally:
            entry.future.cancel()

    def _admit(self, item: ItemT, group: str | None, siblings: int) -> _Entry[ItemT, ValueT]:
        if not self._open:
            raise BatcherStopped(f"batcher {self.name!r} is not started")
        if len(self._waiting) >= self._capacity:
            self._drop_the_cancelled()
        if len(self._waiting) >= self._capacity:
            raise BatchQueueFull(
                self.name,
                waiting=len(self._waiting),
                limit=self._capacity,
                retry_after=timedelta(milliseconds=self._item_ms * len(self._waiting)),
            )
        now = time.monotonic()
        if self._newest:
            self._gap_ms = mean_gap(self._gap_ms, (now - self._newest) * 1000)
        self._newest = now
        self._count_sibling(group, siblings)
        future = asyncio.get_running_loop().create_future()
        entry = _Entry(item, self._length(item), now, group, future)
        self._waiting.append(entry)
        self._soon()
        return entry

    def _soon(self) -> None:
        """Ask the policy after everything that is ready now has run: a gather arrives whole."""
        if self._wake is None and self._open:
            self._wake = asyncio.get_running_loop().call_soon(self._consider)

    def _consider(self) -> None:
        self._wake = None
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._drop_the_cancelled()
        while self._waiting:
            verdict = decide(self._state(), self._limits)
            if not isinstance(verdict, Close):
                if verdict is not None:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(verdict / 1000, self._consider)
                return
            self._close(verdict)

    def _state(self) -> Waiting:
        now = time.monotonic()
        return Waiting(
            count=len(self._waiting),
            oldest_ms=(now - self._waiting[0].came) * 1000,
            newest_ms=(now - self._newest) * 1000,
            gap_ms=self._gap_ms,
            missing=self._siblings_to_come(),
            busy=len(self._running) >= self._at_once,
        )

    def _siblings_to_come(self) -> int | None:
        groups = {entry.group for entry in self._waiting[: self._limits.max_items]}
        known = [self._missing.get(group, 0) for group in groups if group is not None]
        return sum(known) if len(known) == len(groups) else None

    def _close(self, reason: Close) -> None:
        chosen = choose([entry.length for entry in self._waiting], self._limits)
        batch = [self._waiting[i] for i in chosen]
        leaving = set(chosen)
        self._waiting = [e for i, e in enumerate(self._waiting) if i not in leaving]
        self.stats.closed[reason] += 1
        self.stats.sizes[len(batch)] += 1
        self.stats.items += len(batch)
        task = asyncio.create_task(self._perform(batch), name=f"batch of {self.name}")
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._soon()

    async def _perform(self, batch: list[_Entry[ItemT, ValueT]]) -> None:
        closed = time.monotonic()
        try:
            await self._answer(batch, closed)
        except asyncio.CancelledError:
            self._fail(batch, BatcherStopped(f"batcher {self.name!r} was stopped"))
            raise
        spent_ms = (time.monotonic() - closed) * 1000
        self._item_ms = mean_gap(self._item_ms, spent_ms / len(batch))

    async def _answer(self, batch: list[_Entry[ItemT, ValueT]], closed: float) -> None:
        try:
            values = await self._run([entry.item for entry in batch])
            if len(values) != len(batch):
                raise ModelAnswerInvalid(  # noqa: TRY301 -- one way to fail all
                    f"batcher {self.name!r} got {len(values)} values for {len(batch)} items"
                )
        except (*_TRANSPORT, ModelAnswerInvalid) as error:
            self._fail(batch, error)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it belongs to a caller
            await self._halve(batch, error, closed)
        else:
            self._settle(batch, values, closed)

    async def _halve(
        self, batch: list[_Entry[ItemT, ValueT]], error: Exception, closed: float
    ) -> None:
        if len(batch) == 1:
            self._fail(batch, error)
            return
        self.stats.halved += 1
        middle = len(batch) // 2
        await self._answer(batch[:middle], closed)
        await self._answer(batch[middle:], closed)

    def _settle(
        self,
        batch: list[_Entry[ItemT, ValueT]],
        values: Sequence[ValueT | Exception],
        closed: float,
    ) -> None:
        ran_ms = (time.monotonic() - closed) * 1000
        for entry, value in zip(batch, values, strict=True):
            if isinstance(value, Exception):
                self._fail([entry], value)
            elif not entry.future.done():
                waited_ms = (closed - entry.came) * 1000
                entry.future.set_result(BatchResult(value, len(batch), waited_ms, ran_ms))

    def _fail(self, entries: Sequence[_Entry[ItemT, ValueT]], error: Exception) -> None:
        for entry in entries:
            if not entry.future.done():
                entry.future.set_exception(error)

    def _drop_the_cancelled(self) -> None:
        alive = [entry for entry in self._waiting if not entry.future.done()]
        self.stats.dropped += len(self._waiting) - len(alive)
        self._waiting = alive

    def _count_sibling(self, group: str | None, siblings: int) -> None:
        if group is None:
            return
        missing = self._missing.pop(group, siblings) - 1
        if missing > 0:
            self._missing[group] = missing
        while len(self._missing) > _GROUPS:  # of fan-outs that never came whole
            del self._missing[next(iter(self._missing))]
