"""Batching tasks: written for a list, called with one item each, grouped in the process that runs.

    @aq.batched(max_items=16, window="15ms")
    async def embed(texts: list[str]) -> list[Vector]: ...

    await embed("a text")          # in a step: joins the batch that is being collected
    embed.delay("a text")          # from anywhere: an ordinary Celery task with its own result
    plan >> each(embed) >> rank    # in a flow

Each item stays an ordinary step with its own result, retry and deadline; only the call of the
function is shared. So one bad item fails alone, and a killed worker loses no batch. Batches are
collected beside the loop and not in the consumer's prefetch, where they would be of one item each
or hold up everybody else's work.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from agentq.errors import DefinitionError

if TYPE_CHECKING:
    from agentq.inference.batcher import Batcher

ListFunction = Callable[[list[Any]], Awaitable[Sequence[Any]]]


class Batches:
    """The batchers of one batching task: one for each event loop, made when first asked for."""

    def __init__(
        self, *, name: str, function: ListFunction, max_items: int, window: timedelta
    ) -> None:
        """Keep the parts."""
        self._name = name
        self._function = function
        self._max_items = max_items
        self._window_ms = window.total_seconds() * 1000
        self._batchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Batcher[Any, Any]] = (
            weakref.WeakKeyDictionary()
        )

    async def batcher(self) -> Batcher[Any, Any]:
        """Return the running loop's batcher."""
        loop = asyncio.get_running_loop()
        found = self._batchers.get(loop)
        if found is None:
            # Extra `inference`: a producer that only publishes the task does not need it.
            from agentq.inference.batcher import Batcher  # noqa: PLC0415
            from agentq.inference.policy import BatchLimits  # noqa: PLC0415

            found = Batcher(
                name=self._name,
                run=self._function,
                limits=BatchLimits(max_items=self._max_items, window_ms=self._window_ms),
                length=_length,
            )
            await found.start()
            self._batchers[loop] = found
        return found

    async def close(self) -> None:
        """Stop the running loop's batcher; safe twice."""
        found = self._batchers.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.stop()


def one_at_a_time(function: ListFunction, batches: Batches) -> Callable[[Any], Awaitable[Any]]:
    """Return the step's function: one item in, its own result out, annotated like the list's.

    Raises:
        DefinitionError: *function* is no `async def` that takes a list.
    """
    if not asyncio.iscoroutinefunction(function):
        raise DefinitionError(f"batched task {function.__name__!r} must be an async def")
    hints = get_type_hints(function)
    names = [name for name in hints if name != "return"]

    async def one(item: Any) -> Any:
        return (await (await batches.batcher()).submit(item)).value

    one.__name__, one.__qualname__ = function.__name__, function.__qualname__
    one.__module__, one.__doc__ = function.__module__, function.__doc__
    one.__annotations__ = {
        "item": _item_of(hints.get(names[0]) if names else None),
        "return": _item_of(hints.get("return")),
    }
    return one


def _item_of(annotation: Any) -> Any:
    arguments = get_args(annotation)
    return arguments[0] if arguments else Any


def _length(item: Any) -> int:
    """Return what keeps items of unlike length apart: padding makes a mixed batch slower."""
    return len(item) if isinstance(item, str | bytes | list) else 1
