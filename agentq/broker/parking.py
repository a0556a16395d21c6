"""Work that this worker has no code for: how long it waits, and who is asked next.

A cell may run two versions of an app. What one does not know is handed back for the other: soon at
first, then ever more seldom, so that work which nobody knows costs little. For a while after a
refusal this worker lets others go first: it is woken after them, and waits a moment when it is;
else the same one would be woken, and refuse, for ever.
"""

from __future__ import annotations

import time
from collections import OrderedDict

FIRST_MS = 500
LONGEST_MS = 30_000
KEPT = 1000
"""Messages whose refusals are counted."""

STRANGER_S = 60.0
"""How long a refusal moves the worker behind others."""

MOMENT_S = 0.05
"""How long it then waits when it is woken: many times what another one's fetch takes."""

BEHIND = 1_000_000
"""Added to the slots in use, which is the order of waking."""


class Parking:
    """One per worker process."""

    def __init__(self) -> None:
        """Start with nothing refused."""
        self._refusals: OrderedDict[bytes, int] = OrderedDict()
        self._last = float("-inf")

    def after_ms(self, message: bytes) -> int:
        """Count a refusal of *message* (its id); return how long it is to wait."""
        self._last = time.monotonic()
        count = self._refusals.pop(message, 0)
        self._refusals[message] = count + 1
        if len(self._refusals) > KEPT:
            self._refusals.popitem(last=False)
        return int(min(FIRST_MS * 2.0**count, LONGEST_MS))

    def load(self, used: int) -> int:
        """Return by what idle workers are ordered: the least is woken first."""
        return used + BEHIND if self._is_stranger else used

    @property
    def moment(self) -> float:
        """Return how many seconds to wait before work is asked for after a wake-up."""
        return MOMENT_S if self._is_stranger else 0.0

    @property
    def _is_stranger(self) -> bool:
        return time.monotonic() - self._last < STRANGER_S
