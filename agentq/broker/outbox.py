"""Where the effects of a step's completion are gathered, so that they become one function call.

While a step runs, what it publishes goes out at once, as in Celery. What Celery publishes and
stores because the step *ended* (callbacks, the next link of a chain, a retry, errbacks, the
result, the chord's count) is gathered in the delivery's outbox: `scope` names the outbox of the
delivery at hand, `closing` says that the step has ended. Both are context variables, since many
steps share a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentq.store.effects import Effect, Message


@dataclass(slots=True)
class Outbox:
    """The effects of one completion."""

    effects: list[Effect] = field(default_factory=list)
    staged: dict[str, list[Message]] = field(default_factory=dict)
    """Members of large groups, by group or join id: to be staged before the completion."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    """Payloads by their references: to be written before the completion."""
    whole: bool = False
    """Whether large groups stay among the effects all the same: a join's body is not staged."""

    def clear(self) -> None:
        """Forget what was gathered: the step ends otherwise."""
        self.effects.clear()
        self.staged.clear()
        self.blobs.clear()


ATTRIBUTE = "_aq_outbox"
"""Where a request under a stock tracer keeps its outbox: Celery has no scope around a task."""

LETTER = "_aq_letter"
"""Where one that has expired keeps the effect that makes it a dead letter."""

_scope: ContextVar[Outbox | None] = ContextVar("agentq_outbox", default=None)
_closing: ContextVar[bool] = ContextVar("agentq_closing", default=False)


def current() -> Outbox | None:
    """Return the outbox of the delivery at hand."""
    return _scope.get()


def sink() -> Outbox | None:
    """Return the outbox that takes what is published now; None: send it at once."""
    return _scope.get() if _closing.get() else None


@contextmanager
def scope(outbox: Outbox) -> Iterator[Outbox]:
    """Make *outbox* that of the delivery at hand."""
    token = _scope.set(outbox)
    try:
        yield outbox
    finally:
        _scope.reset(token)


@contextmanager
def gathering(request: Any) -> Iterator[None]:
    """Gather what is published in here with the end of *request*'s task."""
    box = current() or request.__dict__.setdefault(ATTRIBUTE, Outbox())
    with scope(box), closing():
        yield


@contextmanager
def closing() -> Iterator[None]:
    """Gather what is published in here."""
    token = _closing.set(True)
    try:
        yield
    finally:
        _closing.reset(token)
