"""Durations as people write them (`"250ms"`, `"30s"`, `"2m"`) and the two clocks that are used."""

from __future__ import annotations

import re
import time
from datetime import timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")

DurationLike = str | int | float | timedelta


def parse_duration(value: DurationLike) -> timedelta:
    """Return *value* as a timedelta; a bare number is seconds.

    Raises:
        ValueError: for anything that is not a number, ``"<number><ms|s|m|h|d>"`` or a timedelta,
            and for durations that are negative or longer than a timedelta can be.
    """
    try:
        duration = _read(value)
    except OverflowError:
        raise ValueError(f"{value!r} is longer than any duration can be") from None
    if duration < timedelta(0):
        raise ValueError(f"{value!r} is negative")
    return duration


def _read(value: DurationLike) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return timedelta(seconds=value)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        return timedelta(seconds=float(match[1]) * _UNITS[match[2]])
    raise ValueError(f"{value!r} is not a duration: write 250ms, 30s, 2m, 1h or 7d")


def format_duration(value: timedelta) -> str:
    """Return the shortest exact text that `parse_duration` reads back."""
    whole_ms = round(value.total_seconds() * 1000)
    if not whole_ms:
        return "0s"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if whole_ms % size == 0:
            return f"{whole_ms // size}{unit}"
    return f"{whole_ms}ms"


def wall_ms() -> int:
    """Return this machine's wall clock in milliseconds; deadlines use the broker's, never this."""
    return time.time_ns() // 1_000_000


def milliseconds(duration: timedelta) -> int:
    """Return *duration* as the store takes it: whole ms, what is less than one cut off."""
    return int(duration.total_seconds() * 1000)
