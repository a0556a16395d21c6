"""How much work a worker takes: by its memory against its limit, and by how its loop keeps up.

    open --- 85 % ---> closed --- below 75 % ---> open
                       closed --- 95 % for 5 s, or idle for 10 s and still closed ---> leave

A worker that is closed goes on with what it has. One that leaves drains and is started again, in
place of the kernel ending it with all it holds. Idle and still closed is memory that does not come
back: a leak, or fragments.

Slots, where they adapt, begin few: what was taken can not be given back. They double at each look
until the loop is late or memory is short for the first time. From then on: a third fewer while that
is so, half as many more while all are taken and loop, core and memory have room; two looks in a row
have to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

CLOSE_AT, OPEN_BELOW, LEAVE_AT = 0.85, 0.75, 0.95
LEAVE_AFTER_S = 5.0
IDLE_AFTER_S = 10.0
"""Twice what jemalloc takes to give back what is free."""

LATE_S, PROMPT_S = 0.2, 0.05
SHORT_AT, ROOM_BELOW = 0.75, 0.65
"""Of the memory limit: slots shrink before the gate closes."""
BUSY_AT = 0.8
LEAST_SLOTS, FIRST_SLOTS = 4, 32
AGREE = 2


class Verdict(Enum):
    """What a worker is to do."""

    OPEN = "take work"
    CLOSED = "take none"
    LEAVE = "drain and go"


class MemoryGate:
    """Judges one process; *limit_bytes* is what the kernel, or the plan, lets it have."""

    def __init__(self, *, limit_bytes: int) -> None:
        """Begin open."""
        self.limit_bytes = limit_bytes
        self._closed = False
        self._high_since: float | None = None
        self._idle_since: float | None = None

    def look(self, *, used_bytes: int, running: int, now: float) -> Verdict:
        """Return what to do, by what is used at *now*, in seconds of any clock."""
        share = used_bytes / self.limit_bytes
        self._closed = share >= (OPEN_BELOW if self._closed else CLOSE_AT)
        self._high_since = _since(self._high_since, now, holds=share >= LEAVE_AT)
        self._idle_since = _since(self._idle_since, now, holds=self._closed and not running)
        for since, after in ((self._high_since, LEAVE_AFTER_S), (self._idle_since, IDLE_AFTER_S)):
            if since is not None and now - since >= after:
                return Verdict.LEAVE
        return Verdict.CLOSED if self._closed else Verdict.OPEN


def _since(since: float | None, now: float, *, holds: bool) -> float | None:
    """Return since when it *holds* without a break."""
    if not holds:
        return None
    return now if since is None else since


@dataclass(frozen=True, slots=True, kw_only=True)
class Strain:
    """How a worker does at one look.

    Attributes:
        lag_s: how late the loop runs what is due.
        busy: share of its core that the loop's thread uses.
        memory: share of the memory limit, 0 where there is none.
        running: steps that run.
    """

    lag_s: float
    busy: float
    memory: float
    running: int


class AdaptiveSlots:
    """How many steps one process runs at once: `LEAST_SLOTS` to *most*, `FIRST_SLOTS` at first."""

    def __init__(self, *, most: int) -> None:
        """Take the upper bound; the others are never above it."""
        self.now = min(FIRST_SLOTS, most)
        self._doubling = True
        self._most = most
        self._least = min(LEAST_SLOTS, most)
        self._late = self._prompt = 0

    def look(self, strain: Strain) -> int:
        """Return how many steps may run from now on."""
        late = strain.lag_s > LATE_S or strain.memory >= SHORT_AT
        room = strain.busy < BUSY_AT and strain.memory < ROOM_BELOW
        prompt = strain.lag_s < PROMPT_S and room and strain.running >= 0.9 * self.now
        self._late = self._late + 1 if late else 0
        self._prompt = self._prompt + 1 if prompt else 0
        if self._late >= AGREE:
            self.now = max(self._least, min(self.now, strain.running) * 2 // 3)
            self._late = 0
        elif self._prompt >= (1 if self._doubling else AGREE):
            more = self.now if self._doubling else max(1, self.now // 2)
            self.now = min(self._most, self.now + more)
            self._prompt = 0
        self._doubling = self._doubling and not late
        return self.now
