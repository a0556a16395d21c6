"""Watches what this worker uses, and lets it take as much work as it can bear.

On the loop, twice a second: it costs some 50 us, and 1 ms for each child. The decisions are
`policy`'s; what stops a worker from taking work is that its slots are none. Without a memory limit
and with fixed slots there is nothing to decide, and it does not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, assert_never

from agentq.host.cgroup import read_cgroup
from agentq.host.process import OwnMemory, pss_bytes
from agentq.worker.policy import CLOSE_AT, OPEN_BELOW, AdaptiveSlots, MemoryGate, Strain, Verdict

if TYPE_CHECKING:
    from agentq.host.plan import Process
    from agentq.settings import Pool

logger = logging.getLogger(__name__)

LOOK_S = 0.5
_TICKS = 5
_WHOSE = "pools.<name>.memory, or the control group's"
NO_MEMORY = 75
"""Exit status of a worker that left for want of memory: EX_TEMPFAIL, to be started again."""


def memory_limit(pool: Pool | None, seat: Process | None) -> int | None:
    """Return what a process may hold, in bytes: the smaller of what it was given and its group's.

    It is given what the plan has for it, and without a plan what the settings say.

    A group that others share is no bound for one of them alone: set `pools.<name>.memory` there.
    """
    given = seat.memory_bytes if seat is not None else pool.memory if pool is not None else None
    both = (given, read_cgroup().memory_bytes)
    return min((size for size in both if size is not None), default=None)


class Intake(Protocol):
    """What takes work: as many steps at once as it has slots."""

    slots: int

    def __len__(self) -> int: ...  # noqa: D105 -- how many run


class LoadWatch:
    """One per worker process."""

    def __init__(
        self,
        *,
        hands: Intake,
        limit_bytes: int | None,
        children: Callable[[], Iterable[int]],
        adaptive: bool,
        on_room: Callable[[], None],
        on_full: Callable[[], None],
    ) -> None:
        """Keep the parts; nothing is closed before the first `round`.

        Args:
            hands: whose slots are set.
            limit_bytes: of this process and its children together; None: memory is not judged.
            children: the process ids of those that work for it. Those of suspects are not: each
                is alone, so that the kernel may end it and nothing else.
            adaptive: whether the slots follow the load; else they are what they are.
            on_room: called when it takes work again, or more of it.
            on_full: called, once, when this process is to drain and go.
        """
        self._hands = hands
        self._memory = OwnMemory()
        self._children = children
        self._on_room = on_room
        self._on_full = on_full
        self._adaptive = AdaptiveSlots(most=hands.slots) if adaptive else None
        self._slots = hands.slots = self._adaptive.now if self._adaptive else hands.slots
        self._used = 0
        self._gate = self._gated(limit_bytes) if limit_bytes is not None else None
        self._verdict = Verdict.OPEN

    @property
    def decides(self) -> bool:
        """Whether there is anything to decide."""
        return self._gate is not None or self._adaptive is not None

    def limit(self, limit_bytes: int | None) -> None:
        """Judge memory by another limit from now on; where it is not judged it stays so."""
        if self._gate is not None and limit_bytes is not None:
            self._gate.limit_bytes = limit_bytes

    async def run(self) -> None:
        """Look until cancelled, or until there is nothing more to decide."""
        while self.decides and self._verdict is not Verdict.LEAVE:
            busy, began = time.thread_time(), time.monotonic()
            lag_s = await _lag()
            self.round(lag_s, (time.thread_time() - busy) / (time.monotonic() - began))

    def round(self, lag_s: float, busy: float) -> None:
        """Look once and act on it; see `Strain` for what is passed."""
        share, running = 0.0, len(self._hands)
        if self._gate is not None:
            with contextlib.suppress(OSError):  # no file is left to look at children: as it was
                self._used = self._used_bytes()
            used = self._used
            share = used / self._gate.limit_bytes
            verdict = self._gate.look(used_bytes=used, running=running, now=time.monotonic())
            if verdict is not self._verdict:
                self._say(verdict, used, self._gate.limit_bytes)
                self._verdict = verdict
                if verdict is Verdict.LEAVE:
                    self._on_full()
        if self._adaptive is not None:
            self._slots = self._adaptive.look(
                Strain(lag_s=lag_s, busy=busy, memory=share, running=running)
            )
        self._set(self._slots if self._verdict is Verdict.OPEN else 0)

    def _set(self, slots: int) -> None:
        more = slots > self._hands.slots
        self._hands.slots = slots
        if more:
            self._on_room()

    def _say(self, verdict: Verdict, used: int, limit: int) -> None:
        held = f"memory {_mb(used)} of {_mb(limit)} ({_WHOSE})"
        match verdict:
            case Verdict.OPEN:
                logger.warning("%s: taking work again", held)
            case Verdict.CLOSED:
                until = OPEN_BELOW * 100
                logger.warning("%s: taking no more work until it is below %d %%", held, until)
            case Verdict.LEAVE:
                logger.error("%s and it does not come back: draining, to be started again", held)
            case _:
                assert_never(verdict)

    def _gated(self, limit_bytes: int) -> MemoryGate | None:
        """Return the judge, none where a worker could not even begin."""
        used = self._used = self._used_bytes()
        if used < OPEN_BELOW * limit_bytes:
            return MemoryGate(limit_bytes=limit_bytes)
        logger.error(
            "this worker holds %s before any work, and its limit is %s (%s): work "
            "stops at %d %% of it, so the limit is not kept; set it to %s at least",
            _mb(used), _mb(limit_bytes), _WHOSE, CLOSE_AT * 100, _mb(2 * used),
        )  # fmt: skip
        return None

    def _used_bytes(self) -> int:
        used = self._memory.rss_bytes()
        for pid in self._children():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                used += pss_bytes(pid)
        return used


def _mb(size: int) -> str:
    return f"{size / 2**20:.0f} MB"


async def _lag() -> float:
    """Return by how much short sleeps are too long on this loop, on average; takes `LOOK_S`."""
    began = time.monotonic()
    for _ in range(_TICKS):
        await asyncio.sleep(LOOK_S / _TICKS)
    return (time.monotonic() - began - LOOK_S) / _TICKS
