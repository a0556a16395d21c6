"""Keeps what a step raises an outcome of that step, whatever it is.

`SystemExit` would end the worker, a cancel that nobody asked for would pass for one from outside,
`StopIteration` can not be put into a future at all: each becomes an ordinary exception.

Context managers on a step's path are classes: one made of a generator costs a microsecond more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentq.errors import StepAborted
from agentq.outcome import text_of


class Contained:
    """Contains a coroutine: `with` it.

    Raises:
        StepAborted: for what is no `Exception`, a cancel from outside excepted.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Turn what must not leave into what may."""
        if error is None or isinstance(error, Exception):
            return
        if not isinstance(error, asyncio.CancelledError):
            raise StepAborted(_told(error)) from error
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            raise StepAborted("CancelledError: it awaited something that was cancelled") from error


CONTAINED = Contained()


def guarded(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a thread or a process.

    Raises:
        StepAborted: for what is no `Exception`, and for `StopIteration`.
    """
    try:
        return function(*args)
    except StopIteration as error:
        raise StepAborted(_told(error)) from error
    except Exception:
        raise
    except BaseException as error:
        raise StepAborted(_told(error)) from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"
