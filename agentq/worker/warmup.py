"""Runs an app's `@aq.warm` functions, one after the other as they were declared.

One that fails or takes too long holds nothing up: the worker starts without it and says so, since
the first step may still get what it needs.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
from collections.abc import Container, Iterable
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentq.clock import format_duration

if TYPE_CHECKING:
    from agentq.broker.warming import Warmer
    from agentq.worker.threads import Threads

logger = logging.getLogger(__name__)


async def warm_worker(
    warmers: Iterable[Warmer],
    threads: Threads,
    *,
    within: timedelta,
    kinds: Container[str] = ("worker",),
) -> None:
    """Run those of *kinds* in this process, each for at most *within*."""
    for warmer in warmers:
        if warmer.kind not in kinds:
            continue
        try:
            async with asyncio.timeout(within.total_seconds()):
                if inspect.iscoroutinefunction(warmer.function):
                    await warmer.function()
                else:
                    await threads.run(warmer.function)
        except TimeoutError:
            logger.warning(
                "warm %s did not end within %s (worker.warm_timeout): starting without it",
                warmer.name, format_duration(within),
            )  # fmt: skip
        except Exception:
            logger.exception("warm %s failed: starting without it", warmer.name)


def keep_what_is_there(threshold: int) -> None:
    """Have the garbage collector look at what exists now no more: it is never garbage.

    *threshold*: new objects after which it looks at those that came since.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(threshold, 50, 50)


def warm_child(modules: list[str], functions: list[tuple[str, str]]) -> bool:
    """Import the step modules in a process for steps of kind="cpu", then call its *functions*."""
    for module in modules:
        import_module(module)
    for module, name in functions:
        function: Any = import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        try:
            function()
        except Exception:
            logger.exception("warm %s.%s failed: starting without it", module, name)
    return True
