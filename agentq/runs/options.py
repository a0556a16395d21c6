"""Options of a call that are durations, refused by name."""

from __future__ import annotations

from datetime import timedelta

from agentq.clock import DurationLike, parse_duration
from agentq.errors import InvalidOption


def duration_of(option: str, value: DurationLike) -> timedelta:
    """Return *value*, given as *option*, as a timedelta.

    Raises:
        InvalidOption: it is none; the text names the option, what was given, and what may be.
    """
    try:
        return parse_duration(value)
    except (ValueError, OverflowError) as error:
        raise InvalidOption(f"{option}: {error}") from error
