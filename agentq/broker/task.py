"""The task class of our apps: Celery's, with steps, fan-ins and atomic retries.

Under Celery's own tracer (stock pools, and our threads) a task is called through `__call__`, which
resolves what a fan-in left for it and runs coroutines; our loop does both itself.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery import Task as CeleryTask
from celery.app.task import get_actual_ignore_result
from celery.exceptions import Ignore, Reject, Retry

from agentq.broker import outbox
from agentq.broker.sequence import Part, Sequence, sequence_of
from agentq.errors import BrokerUnavailable

if TYPE_CHECKING:
    from agentq.broker.step import Step

_runners = threading.local()


def run_coroutine(coroutine: Any) -> Any:
    """Run *coroutine* on this thread's loop, which lives as long as the thread.

    A loop per call would close the HTTP clients bound to it ("Event loop is closed").
    """
    runner = getattr(_runners, "runner", None)
    if runner is None:
        runner = _runners.runner = asyncio.Runner()
    return runner.run(coroutine)


_OF_FLOWS = frozenset({"submit", "asubmit", "submit_many"})

CALLED = "_aq_called"
"""Set on a request once its tracer has called the task: what calls it then, while it runs, is user
code (or an errback that is the same task), and calls it directly."""


@contextmanager
def before_it_begins() -> Iterator[None]:
    """Let a task that could not begin, as the broker did not answer, be handed out again.

    Raises:
        Reject: of Celery's, to that end; a broker that stays away is no outcome of the task.
    """
    try:
        yield
    except BrokerUnavailable as error:
        raise Reject(str(error), requeue=True) from error


class Task(CeleryTask):  # type: ignore[misc]
    """What `@app.task` and `@aq.step` make."""

    abstract = True
    Request = "agentq.broker.request:Request"
    step: Step | None = None
    """The declaration, None for an ordinary task."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task: called by Celery's tracer, or directly by its author."""
        request = self.request
        if request.called_directly or request.__dict__.get(CALLED):
            return self.run(*args, **kwargs)
        request.__dict__[CALLED] = True
        if self.backend.is_lost(request):
            raise Ignore
        with before_it_begins():
            resolved = self.app.resolve_joins(args, getattr(request, "aq", None))
        if self.step is not None:
            return self.app.run_step(self, resolved)
        result = self.run(*resolved, **kwargs)
        return run_coroutine(result) if inspect.iscoroutine(result) else result

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,  # noqa: FBT001, FBT002 -- Celery's
        **options: Any,
    ) -> Any:
        """Do what Celery's does; the new message is part of this attempt's completion."""
        request = self.request
        if request.called_directly or not throw:  # not throw: the task goes on, so it is sent now
            return super().retry(args, kwargs, exc, throw, **options)
        try:
            with outbox.gathering(request):
                return super().retry(args, kwargs, exc, throw, **options)
        except Retry:
            self.settle_ignored()
            raise

    def settle_ignored(self) -> None:
        """End an attempt whose retry Celery's tracer will not tell the backend of."""
        ignored = get_actual_ignore_result(self, self.request)
        if ignored and not self.store_errors_even_if_ignored:
            self.backend.settle(self.request)

    def on_replace(self, sig: Any) -> Any:
        """Do what Celery's does; the replacement is part of this task's completion."""
        request = self.request
        if request.is_eager or request.called_directly:
            return super().on_replace(sig)
        try:
            with outbox.gathering(request):
                return super().on_replace(sig)
        except Ignore:
            self.backend.settle(request)
            raise

    def __getattr__(self, name: str) -> Any:
        """Say what to do where a step is taken for a flow; only called for what is not there."""
        hint = ""
        if name in _OF_FLOWS and self.step is not None:
            hint = f': make a flow of it, aq.flow("name", step).{name}(...)'
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}{hint}")

    def __rshift__(self, other: Part) -> Sequence:
        """Return this step, followed by *other*."""
        return sequence_of(self) >> other
