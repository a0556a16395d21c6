"""What is wrong with a machine or a plan, and what to do about it: the same words everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that an operator should know."""

    severity: Literal["error", "warning", "note"]
    """error: something will fail; warning: it costs; note: good to know."""
    subject: str
    """What it is about, in a word or two, e.g. ``open files``."""
    seen: str
    why: str
    remedy: str
    """The command or line that changes it."""

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.severity}: {self.subject}: {self.seen}; {self.why}; {self.remedy}"


def listed(names: Sequence[str]) -> str:
    """Return *names* as a person reads them, and of a crowd the first and how many more."""
    more = len(names) - _LISTED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:_LISTED])} and {more} more"
