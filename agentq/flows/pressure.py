"""How a producer feels a queue fill up: it slows down before it is refused, and waits for room.

From half full on a producer goes at the pool's own rate times (1 - fill) / (fill - 1/2). Alone it
settles at three quarters, several of them nearer to full; none runs into the cap while work drains.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from agentq.clock import DurationLike
from agentq.errors import QueueFull
from agentq.runs.options import duration_of
from agentq.store.calls import Accepted, Load

T = TypeVar("T")

CALM = 0.5
"""Up to this fill nobody is slowed."""

LONGEST_PAUSE_S = 2.0
"""Within it a queue that drains again is noticed."""

_EMPTY = Accepted(0, 0)


def pause_s(load: Load, count: int) -> float:
    """Return how long a producer pauses that has just handed over *count* messages."""
    if load.fill < CALM or not count:
        return 0.0
    if load.fill >= 1 or load.rate == 0:
        return LONGEST_PAUSE_S
    if load.rate is None:
        return (load.fill - CALM) / CALM
    return min(LONGEST_PAUSE_S, count / load.rate * (load.fill - CALM) / (1 - load.fill))


def batch_size(last: Accepted | None, *, most: int, limit: int) -> int:
    """Return how many to hand over at once: half of the room there was, a quarter to begin with."""
    if last is None:
        return max(1, min(most, limit // 4))
    fill = last.load.fill
    room = (limit - last.depth) if not fill else last.depth * (1 - fill) / fill
    if fill < CALM:
        room = max(room, limit / 4)
    return max(1, min(most, int(room / 2)))


class Pressure:
    """What the last answers said; one per app."""

    def __init__(self, *, jitter: Callable[[], float] = random.random) -> None:
        """Begin calm; *jitter* is 0-1."""
        self._jitter = jitter
        self._last = _EMPTY
        self._owed = 0

    def note(self, accepted: Accepted) -> None:
        """One message was accepted."""
        self._last = accepted
        self._owed += 1

    def refused(self) -> None:
        """One message was not."""
        self._last = Accepted(self._last.depth, 0, Load(1.0, self._last.load.waiting, None))
        self._owed += 1

    def forget(self) -> None:
        """Owe no pause for what was handed over so far."""
        self._owed = 0

    def pause(self) -> float:
        """Return the seconds to pause for what was handed over since the last pause."""
        owed, self._owed = self._owed, 0
        return pause_s(self._last.load, owed) * (0.75 + 0.5 * self._jitter())

    @property
    def last(self) -> Accepted:
        """Return the last answer."""
        return self._last


class Patience:
    """Waits for room in a full queue until a limit."""

    def __init__(
        self, limit: DurationLike | None, *, jitter: Callable[[], float] = random.random
    ) -> None:
        """Begin to count; None: not at all.

        Raises:
            InvalidOption: the limit is no duration.
        """
        seconds = duration_of("wait", limit).total_seconds() if limit is not None else 0.0
        self._until = time.monotonic() + seconds
        self._jitter = jitter

    def pause(self, full: QueueFull) -> float:
        """Return the seconds until the next try: about `retry_after`, within the limit.

        Raises:
            QueueFull: the limit has passed.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise full
        wanted = min(full.retry_after.total_seconds(), LONGEST_PAUSE_S)
        return min(left, wanted * (0.5 + self._jitter()))


class Paced(Generic[T]):
    """Items of a producer, handed out as fast as the queue takes what it makes of them."""

    def __init__(self, items: Iterable[T] | AsyncIterable[T], pressure: Pressure) -> None:
        """Keep the parts."""
        self._items = items
        self._pressure = pressure

    def __iter__(self) -> Iterator[T]:
        """Hand out the items, pausing before each for what was submitted since the one before."""
        if isinstance(self._items, AsyncIterable):
            raise TypeError("paced() was given an async iterable: write `async for`")
        self._pressure.forget()
        for item in self._items:
            time.sleep(self._pressure.pause())
            yield item

    async def __aiter__(self) -> AsyncIterator[T]:
        """Hand out the items as `__iter__` does, without holding up the event loop."""
        self._pressure.forget()
        async for item in _each(self._items):
            if pause := self._pressure.pause():
                await asyncio.sleep(pause)
            yield item


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
