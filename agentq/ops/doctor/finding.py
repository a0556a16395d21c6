"""What a check of `agentq doctor` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is to be known, or done."""

    severity: Severity
    """error: work is refused, lost or wrong; warning: it will be, or is slow; note: to be known."""
    name: str
    """``subject.check``, the same in every release."""
    seen: str
    why: str
    """Why it matters."""
    fix: str
    """The command or the line of settings that mends it."""


def error(name: str, seen: str, *, why: str, fix: str) -> Finding:
    """Return an error."""
    return Finding(severity="error", name=name, seen=seen, why=why, fix=fix)


def warning(name: str, seen: str, *, why: str, fix: str) -> Finding:
    """Return a warning."""
    return Finding(severity="warning", name=name, seen=seen, why=why, fix=fix)


def note(name: str, seen: str, *, why: str, fix: str) -> Finding:
    """Return a note."""
    return Finding(severity="note", name=name, seen=seen, why=why, fix=fix)


def unchecked(name: str, because: object, *, fix: str) -> Finding:
    """Return what stands for a check that could not be made: silence would look like health."""
    return note(name, f"not checked: {because}", why="nothing is known of it", fix=fix)
