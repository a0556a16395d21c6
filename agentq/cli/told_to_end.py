"""Ctrl-C and SIGTERM as a quiet way out of a block, so that what was started is ended in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _ToldToEnd(BaseException):
    """Raised in the main thread by the first signal."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Unwind the block on SIGINT, SIGTERM or SIGHUP; exit 0 after Ctrl-C, else 128 + signal.

    While it unwinds a second Ctrl-C raises KeyboardInterrupt, and SIGTERM changes nothing.
    """
    told: list[int] = []

    def leave(number: int, _: FrameType | None) -> None:
        if not told:
            told.append(number)
            raise _ToldToEnd(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    except _ToldToEnd as end:
        if end.number != signal.SIGINT:
            raise SystemExit(128 + end.number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
