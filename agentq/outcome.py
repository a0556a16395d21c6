"""What a member of a fan-out hands to its join: `Ok(value)` or `Err(kind, message, ...)`.

On the wire `{"value": ...}` and `{"kind": ..., "message": ..., ...}`, so that a step annotated
`list[Ok[Finding] | Err]` gets its models back by pydantic alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_HEAD, _TAIL = 6144, 2048
"""Characters of an exception's text that are kept: a thousand members' are read at once."""


@dataclass(frozen=True)
class Ok(Generic[T]):
    """The member ended with this value."""

    value: T


@dataclass(frozen=True)
class Err:
    """The member failed for good."""

    kind: str
    """Name of the exception's class, e.g. ``ModelTimeout``."""
    message: str
    step: str = ""
    attempts: int = 1


Outcome = Ok[Any] | Err


def text_of(error: object) -> str:
    """Return what an exception says, fit to be sent; one whose `__str__` raises says that."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 -- as `traceback` does
        return f"<unprintable {type(error).__name__} object>"
    return sendable(text)


def sendable(text: str) -> str:
    """Return *text* without lone surrogates, which no JSON has, and without a long middle."""
    if (cut := len(text) - _HEAD - _TAIL) > 0:
        text = f"{text[:_HEAD]}... ({cut} characters cut) ...{text[-_TAIL:]}"
    return text.encode(errors="backslashreplace").decode()


def outcome_of(wire: dict[str, Any]) -> Outcome:
    """Return the outcome that *wire* carries, its value as plain JSON."""
    return Ok(wire["value"]) if "value" in wire else Err(**wire)
