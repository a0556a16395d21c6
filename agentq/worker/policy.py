"""Which work a worker asks for next: the one seam where another policy can be put. Pure.

The default reads the lanes in their order, and every eighth time the other way round with an eighth
of the room for each: a full `high` lane delays the oldest `low` step by at most eight fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Quotas = list[str | int]
"""Alternating lane and the most to take from it, in the order to read them."""


class Selection(Protocol):
    """Chooses what to ask for."""

    def quotas(self, room: int, turn: int) -> Quotas:
        """Return lanes and quotas for *room* free slots at the *turn*-th fetch."""
        ...


@dataclass(frozen=True, slots=True)
class InOrder:
    """The default policy."""

    lanes: Sequence[str]
    share: int = 8

    def quotas(self, room: int, turn: int) -> Quotas:
        """Return lanes and quotas."""
        if turn % self.share == self.share - 1:
            some = max(1, room // self.share)
            backwards = [arg for lane in reversed(self.lanes) for arg in (lane, some)]
            return backwards + [arg for lane in self.lanes for arg in (lane, room)]
        return [arg for lane in self.lanes for arg in (lane, room)]
