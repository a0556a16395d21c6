"""Absolute deadlines on Redis' clock, and that clock as a process knows it. Pure.

A deadline is set once, when a run is submitted; every wait on the way down gets what is left of it
and never more.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from agentq.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant, in ms of Redis' clock; 0 never comes."""

    at_ms: int

    @property
    def set(self) -> bool:
        """Whether there is one."""
        return self.at_ms > 0

    def remaining(self, now_ms: int) -> timedelta | None:
        """Return what is left, at least zero; None: no deadline."""
        return timedelta(milliseconds=max(0, self.at_ms - now_ms)) if self.set else None

    def passed(self, now_ms: int) -> bool:
        """Whether it lies behind *now_ms*."""
        return self.set and now_ms > self.at_ms

    def check(self, now_ms: int, what: str) -> None:
        """Do nothing before the deadline.

        Raises:
            DeadlineExceeded: it has passed; the text says by how much *what* was late.
        """
        if self.passed(now_ms):
            late = (now_ms - self.at_ms) / 1000
            raise DeadlineExceeded(f"{what}: its run's deadline passed {late:.1f} s ago")


NEVER = Deadline(0)


def shortest(*limits: timedelta | None) -> timedelta | None:
    """Return the smallest of those that are set."""
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


_CLOCK_WAS_SET_MS = 2000.0


@dataclass(slots=True)
class BrokerClock:
    """Redis' clock, carried on by this process' monotonic one between answers."""

    offset_ms: float = 0.0
    known: bool = False

    def learn(self, broker_ms: int, monotonic_s: float) -> None:
        """Note an answer's time.

        An answer comes late, never early, so the fastest one is nearest to the truth: a slower one
        pulls back by a hundredth only, and one that is off by seconds is a clock that was set.
        """
        offset_ms = broker_ms - monotonic_s * 1000
        behind = self.offset_ms - offset_ms
        if not self.known or behind < 0 or behind > _CLOCK_WAS_SET_MS:
            self.offset_ms = offset_ms
        else:
            self.offset_ms -= behind / 100
        self.known = True

    def now_ms(self, monotonic_s: float) -> int:
        """Return Redis' time now."""
        return int(self.offset_ms + monotonic_s * 1000)
