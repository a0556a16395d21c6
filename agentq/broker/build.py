"""What tells this build of agentq from the others that work in the same cell."""

from __future__ import annotations

from functools import cache

from agentq.store import library


@cache
def build() -> str:
    """Return e.g. ``0.1.0 (functions 3, 5f0c1d2e3a4b5c6d)``."""
    from agentq import __version__  # noqa: PLC0415 -- it imports this package

    return f"{__version__} (functions {library.REVISION}, {library.digest()})"
