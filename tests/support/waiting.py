"""Waiting for a described condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_S = 0.02


def wait_until(
    predicate: Callable[[], T], description: str | Callable[[], str], timeout: float = 15.0
) -> T:
    """Return the first truthy answer of *predicate*, or fail saying what was waited for."""
    deadline = time.monotonic() + timeout
    while True:
        if answer := predicate():
            return answer
        if time.monotonic() > deadline:
            said = description() if callable(description) else description
            raise AssertionError(f"not within {timeout:g} s: {said}")
        time.sleep(_PAUSE_S)
