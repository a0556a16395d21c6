"""Replies as they come, as lists or maps, by protocol version and client: made one of each kind."""

from __future__ import annotations

from typing import Any


def facts(info: Any) -> dict[str, str]:
    """Return INFO's fields; none where it was refused."""
    if isinstance(info, dict):
        return {str(key): str(value) for key, value in info.items()}
    text = info.decode() if isinstance(info, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def pairs(reply: Any) -> dict[str, str]:
    """Return names and values as text; none where it was refused."""
    if isinstance(reply, Exception):
        return {}
    found = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    return {text(key): text(value) for key, value in found.items()}


def text(value: Any) -> str:
    """Return bytes as text, and anything else as it is written."""
    return value.decode() if isinstance(value, bytes) else str(value)


def scored(reply: Any) -> list[tuple[bytes, float]]:
    """Return the members of a sorted set with their scores."""
    if reply and isinstance(reply[0], bytes):
        reply = zip(reply[::2], reply[1::2], strict=True)
    return [(name, float(score)) for name, score in reply or ()]
