"""`@aq.warm`: what is done before a worker is ready, so that no first step waits for it.

kind="worker"   in the worker, an `async def` on the steps' loop, a `def` in a thread
kind="cpu"      in each process for steps of kind="cpu", a `def`
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from agentq.errors import DefinitionError

KINDS = ("worker", "cpu")


class Warmer(NamedTuple):
    """A function without arguments, and where it runs."""

    function: Callable[[], Any]
    kind: str

    @property
    def name(self) -> str:
        """Return module and function, as messages name it."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


def warmer(function: Callable[[], Any], kind: str) -> Warmer:
    """Return *function* as one that warms up.

    Raises:
        DefinitionError: it takes arguments, or can not run as that kind.
    """
    found = Warmer(function, kind)
    if kind not in KINDS:
        raise DefinitionError(f"warm {found.name!r}: kind {kind!r} is not {' or '.join(KINDS)}")
    if inspect.signature(function).parameters:
        raise DefinitionError(f"warm {found.name!r}: it is called without arguments, take none")
    if kind == "cpu" and inspect.iscoroutinefunction(function):
        raise DefinitionError(f'warm {found.name!r} is async: kind="cpu" needs a plain def')
    if kind == "cpu" and "<" in function.__qualname__:
        raise DefinitionError(
            f"warm {found.name!r}: the processes look for it by name, declare it in a module"
        )
    return found


def places(warmers: Iterable[Warmer]) -> list[tuple[str, str]]:
    """Return module and name of those of kind="cpu", by which another process finds them."""
    return [
        (one.function.__module__, one.function.__qualname__) for one in warmers if one.kind == "cpu"
    ]
