"""Work that this worker has no code for: how long it waits, and who is asked next.

A cell may run two versions of an app. What one does not know is handed back for the other: soon at
first, then ever more seldom, so that work which nobody knows costs little. For a while after a
refusal this worker lets others go first: it is woken after them, and waits a moment when it is;
else the same one would be woken, and refuse, for ever.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict

logger = logging.getLogger(__name__)

FIRST_MS = 500
LONGEST_MS = 30_000
KEPT = 1000
"""Messages whose refusals are counted, and names that are remembered as said."""

STRANGER_S = 60.0
"""How long a refusal moves the worker behind others."""

MOMENT_S = 0.05
"""How long it then waits when it is woken: many times what another one's fetch takes."""

SAID_EVERY_S = 60.0
"""Between two lines about the same thing that is lacking."""

BEHIND = 1_000_000
"""Added to the slots in use, which is the order of waking."""


class Parking:
    """One per worker process."""

    def __init__(self) -> None:
        """Start with nothing refused."""
        self._refusals: OrderedDict[bytes, int] = OrderedDict()
        self._last = float("-inf")
        self._said: OrderedDict[str, float] = OrderedDict()

    def after_ms(self, message: bytes) -> int:
        """Count a refusal of *message* (its id); return how long it is to wait."""
        self._last = time.monotonic()
        count = self._refusals.pop(message, 0)
        self._refusals[message] = count + 1
        if len(self._refusals) > KEPT:
            self._refusals.popitem(last=False)
        return int(min(FIRST_MS * 2.0**count, LONGEST_MS))

    def is_news(self, lacking: str) -> bool:
        """Whether to log that *lacking* is not here: it is met at each look, by each message."""
        now = time.monotonic()
        if now - self._said.get(lacking, float("-inf")) < SAID_EVERY_S:
            return False
        self._said[lacking] = now
        self._said.move_to_end(lacking)
        if len(self._said) > KEPT:
            self._said.popitem(last=False)
        return True

    def say(self, lacking: str) -> None:
        """Log that *lacking* is not here, where that is news."""
        if self.is_news(lacking):
            logger.warning("no %s here: handed back for a worker that has it", lacking)

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
