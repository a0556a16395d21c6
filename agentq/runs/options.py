"""Options of a call that are nothing they may be, refused by name."""

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
    except ValueError as error:
        raise InvalidOption(f"{option}: {error}") from error


def text_of(option: str, value: object) -> str:
    """Return *value*, given as *option*.

    Raises:
        InvalidOption: it is no text, or one with half a character (a lone surrogate).
    """
    if not isinstance(value, str):
        raise InvalidOption(f"{option}: {value!r} is not a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidOption(f"{option}: {value!r} can not be written in UTF-8") from error
    return value
