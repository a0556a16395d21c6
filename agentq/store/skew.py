"""How far this machine's wall clock is from the broker's: said once, used for nothing.

Everything that is timed is timed by the broker; a wrong clock shows only in logs and events.
"""

from __future__ import annotations

import logging
from typing import Any

from agentq.clock import wall_ms

logger = logging.getLogger(__name__)

SKEW_SHOWN_MS = 5_000
"""From here on a difference is worth a warning: less is the network's, or NTP's at work."""

_warned: set[Any] = set()
_silent = False


def leave_it_to_another(**_: object) -> None:
    """Warn no more: this is a worker's child, and its parent says it."""
    global _silent  # noqa: PLW0603 -- of this process, like the clock
    _silent = True


def learn(address: object, broker_ms: int, asked_ms: int) -> int:
    """Return how many ms the wall clock is ahead of the cell's at *address*; warn once of much.

    *broker_ms* was read at some time between *asked_ms* on this clock and now: however long the
    answer took, no more than what that cannot explain counts.
    """
    ahead, behind = asked_ms - broker_ms, broker_ms - wall_ms()
    skew = ahead if ahead > 0 else -behind if behind > 0 else 0
    if abs(skew) > SKEW_SHOWN_MS and address not in _warned and not _silent:
        _warned.add(address)
        logger.warning(
            "this machine's clock is %.1f s %s that of the broker at %s; work is timed by the "
            "broker's, but logs and events are off",
            abs(skew) / 1000, "ahead of" if skew > 0 else "behind", address,
        )  # fmt: skip
    return skew
