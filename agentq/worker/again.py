"""A delivery that is handed out again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Again:
    """How it is handed out again."""

    after_ms: int
    counts: bool
    """Whether it counts as a retry."""
