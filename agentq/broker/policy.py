"""Which work a worker asks for next: the one seam where another policy can be put. Pure.

The default reads the lanes in their order, and every eighth time the lower ones first, with an
eighth of the room for each; which of them leads goes round. So under a full `high` lane the oldest
step of every lower lane starts within

    8 fetches of one worker that has room for as many steps as there are lower lanes
    8 x lower lanes (24 with the four lanes we have) of one that takes a single step at a time

and a worker fetches whenever a step of it ends: with one slot and steps of a second, 24 seconds.
The fetches of each pool are counted apart, since a worker may ask its pools in turns.
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
        """Return lanes and quotas for *room* free slots at the *turn*-th fetch from a pool."""
        ...


@dataclass(frozen=True, slots=True)
class InOrder:
    """The default policy."""

    lanes: Sequence[str]
    share: int = 8

    def quotas(self, room: int, turn: int) -> Quotas:
        """Return lanes and quotas."""
        in_order: Quotas = [arg for lane in self.lanes for arg in (lane, room)]
        lower = self.lanes[1:]
        if not lower or turn % self.share != self.share - 1:
            return in_order
        first = len(lower) - 1 - turn // self.share % len(lower)
        some = max(1, room // self.share)
        return [arg for lane in (*lower[first:], *lower[:first]) for arg in (lane, some)] + in_order
