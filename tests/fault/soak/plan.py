"""What a soak does and when, from its length and a seed: the same ones give the same faults."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

Fault = Literal["kill", "restart", "freeze"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Lengths are in seconds.

    seconds: how long work is offered, the fault-free tenth included.
    rate: pieces of work offered a second; a piece is 4 steps on average.
    kill_every: the shortest and the longest time between two kills.
    restart_every, freeze_every: at most; a soak has at least two of each, so a short one has them closer.
    freeze: how long the server, or a worker, stands still: longer than a lease, and than the 3 s after
        which it is seen that nobody could renew.
    lose: share of replies that are lost, each with its link.
    rush: before all this the work of so many seconds is offered at once: more than after any
        standstill, so that room for the most that is ever under way is made before growth is looked for.
    residents: kinds of the workers that are never killed, so that growth shows.
    mortals: kinds of those that are; each is replaced by one of its kind.
    """

    seconds: float
    seed: int
    rate: float = 8.0
    kill_every: tuple[float, float] = (5.0, 15.0)
    restart_every: float = 180.0
    freeze_every: float = 300.0
    freeze: float = 10.0
    lose: float = 0.05
    lease: float = 4.0
    rush: float = 20.0
    residents: tuple[str, ...] = ("ours", "prefork")
    mortals: tuple[str, ...] = ("ours", "ours", "prefork")

    @property
    def calm(self) -> float:
        """How long there are no faults at the beginning: what throughput is compared with."""
        return self.seconds / 10

    @property
    def warm(self) -> float:
        """When memory, files, threads and keys are taken to be what they stay: ten minutes.

        In a short soak behind its first standstills: the rush at their end starts the last threads.
        """
        return min(600.0, self.seconds / 2)

    @property
    def keep(self) -> float:
        """How long runs, results and ids are kept: short, so that the number of keys is steady.

        Longer than a standstill, after which a submit may be sent again and an end be read.
        """
        return max(20.0, 2 * self.freeze, min(60.0, self.seconds / 12))

    @property
    def window(self) -> float:
        """How long it is looked what is held, before `warm` and before the end: two restarts long."""
        return min(2 * self.restart_every, 0.6 * self.warm)

    @property
    def tells_growth(self) -> bool:
        """Whether it is long enough: links and children come and go by a third from minute to minute."""
        return self.seconds >= 1200.0

    def faults(self) -> Iterator[tuple[float, Fault]]:
        """Yield each fault with its time since the beginning, in order."""
        chance = random.Random(self.seed)  # noqa: S311 -- a seed repeats a failure
        length = self.seconds - self.calm
        restarts = min(self.restart_every, length / 2)
        freezes = min(self.freeze_every, length / 2)
        found: list[tuple[float, Fault]] = []
        at = 0.0
        while (at := at + chance.uniform(*self.kill_every)) < length:
            found.append((at, "kill"))
        # Not at the same time, and the last early enough to be seen to pass.
        found += ((at, "restart") for at in _every(restarts, restarts / 3, length))
        found += ((at, "freeze") for at in _every(freezes, freezes / 2, length))
        for at, fault in sorted(found):
            yield self.calm + at, fault


def _every(period: float, first: float, end: float) -> Iterator[float]:
    for number in count():
        at = first + number * period
        if at >= end:
            return
        yield at
