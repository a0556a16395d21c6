"""A step under Celery's own tracer: what our loop does for it otherwise.

Not there: its time limit, and its entry in the run's timeline.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from celery.exceptions import Retry

from agentq.broker.context import Context
from agentq.broker.task import Task, run_coroutine
from agentq.timing.deadline import BrokerClock, Deadline

if TYPE_CHECKING:
    from agentq.broker.app import App


def attempt_of(request: Any) -> int:
    """Return which attempt this is, 1 the first: after exceptions and deaths of its process."""
    # Celery passes the properties on as they came, and makes a `delivery_info` of its own.
    info = (request.properties or {}).get("delivery_info") or {}
    deaths: int = info.get("deaths", 0)
    return int(request.retries) + deaths + 1


def run_step(app: App, task: Task, args: tuple[Any, ...]) -> Any:
    """Run a step with its context and return its checked result as JSON values.

    Raises:
        Retry: it raised, and is to be run again; its delivery's end says so.
    """
    step = task.step
    assert step is not None  # noqa: S101 -- only steps come here
    request = task.request
    ours = getattr(request, "aq", None) or {}
    context = Context(
        run_id=ours.get("run", ""),
        step=step.name,
        task_id=request.id,
        attempt=attempt_of(request),
        worker=request.hostname or "",
        services=app.services(),
        embeddings=app.embeddings,
        clock=BrokerClock(),
        deadline=Deadline(0),
    )
    request.__dict__["_aq_ledger"] = context.ledger
    try:
        result = step.function(*step.arguments(context, args))
        if step.kind == "async":
            result = run_coroutine(result)
        return step.plain(result)
    except Exception as error:
        after = step.again(error, request.retries, jitter=random.random())  # noqa: S311 -- jitter
        if "flow" not in ours or after is None or not task.backend.ends_again(request, after):
            raise
        task.settle_ignored()
        raise Retry(exc=error, when=after.total_seconds()) from error
