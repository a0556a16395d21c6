"""What a member of a fan-out hands to its join: `Ok(value)` or `Err(kind, message, ...)`.

On the wire `{"value": ...}` and `{"kind": ..., "message": ..., ...}`, so that a step annotated
`list[Ok[Finding] | Err]` gets its models back by pydantic alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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


def outcome_of(wire: dict[str, Any]) -> Outcome:
    """Return the outcome that *wire* carries, its value as plain JSON."""
    return Ok(wire["value"]) if "value" in wire else Err(**wire)
