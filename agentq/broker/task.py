"""The task class of our apps: Celery's, with steps, fan-ins and atomic retries.

Under Celery's own tracer (stock pools, and our threads) a task is called through `__call__`, which
resolves what a fan-in left for it and runs coroutines; our loop does both itself.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import TYPE_CHECKING, Any

from celery import Task as CeleryTask

from agentq.broker import outbox
from agentq.broker.sequence import Part, Sequence, sequence_of

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


class Task(CeleryTask):  # type: ignore[misc]
    """What `@app.task` and `@aq.step` make."""

    abstract = True
    step: Step | None = None
    """The declaration, None for an ordinary task."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task: called by Celery's tracer, or directly by its author."""
        if self.request.called_directly:
            return self.run(*args, **kwargs)
        resolved = self.app.resolve_joins(args)
        if self.step is not None:
            return self.app.run_step(self, resolved)
        result = self.run(*resolved, **kwargs)
        return run_coroutine(result) if inspect.iscoroutine(result) else result

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """Do what Celery's does; the new message is part of this attempt's completion."""
        with outbox.closing():
            return super().retry(*args, **kwargs)

    def __rshift__(self, other: Part) -> Sequence:
        """Return this step, followed by *other*."""
        return sequence_of(self) >> other
