"""What is wrong with a machine or a plan, and what to do about it: the same words everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
