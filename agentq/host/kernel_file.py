"""Files of /proc and /sys, which may be hidden or absent: containers, other kernels, not Linux."""

from __future__ import annotations

from pathlib import Path


def text_of(path: Path) -> str:
    """Return the text of *path* without the space around it; empty where it can not be read."""
    try:
        # Groups have names that people gave them: they are to be found again whatever is in them.
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return ""


def number_of(path: Path) -> int | None:
    """Return the number that *path* holds; None where it can not be read, or holds a word."""
    text = text_of(path)
    return int(text) if text.isdigit() else None
