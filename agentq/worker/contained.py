"""Keeps what a step raises an outcome of that step, whatever it is.

`SystemExit` would end the worker, a cancel that nobody asked for would pass for one from outside,
`StopIteration` can not be put into a future at all: each becomes an ordinary exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentq.errors import StepAborted
from agentq.outcome import text_of


@contextmanager
def contained() -> Iterator[None]:
    """Contain a coroutine.

    Raises:
        StepAborted: for what is no `Exception`, a cancel from outside excepted.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StepAborted("CancelledError: it awaited something that was cancelled") from error
    except Exception:
        raise
    except BaseException as error:
        raise StepAborted(_told(error)) from error


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
