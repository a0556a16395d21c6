"""What a channel asks of the Celery app whose worker it serves, and of that worker's pool."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery import Task as CeleryTask
from celery import current_app, signals
from celery.app.task import Context

from agentq.errors import WorkerLost
from agentq.store import announced

_pool = SimpleNamespace(processes=0, slots=0, hostname="", closed=False)

_PLAIN_REQUEST = "agentq.broker.request:PlainRequest"


@signals.celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _adopt_plain_tasks(instance: Any, **_: Any) -> None:
    """Give a plain Celery app's tasks our request; one that they were given by their author stays.

    Nothing else of such an app is ours, and Celery asks the task alone what its request is.
    """
    app = instance.app
    ours = app.connection_for_read().transport.driver_name == "agentq"
    if not ours or getattr(app, "aq", None) is not None:
        return
    for task in app.tasks.values():
        if task.Request == CeleryTask.Request:
            task.Request = _PLAIN_REQUEST


@signals.celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _note_pool(instance: Any, **_: Any) -> None:
    from celery.concurrency.prefork import TaskPool  # noqa: PLC0415 -- producers need none

    kind = instance.pool_cls
    forks = isinstance(kind, type) and issubclass(kind, TaskPool)
    _pool.processes = instance.concurrency if forks else 0
    _pool.slots, _pool.hostname = instance.concurrency, instance.hostname


def processes() -> int:
    """Return in how many processes tasks run alone; 0: they run beside others, or in the worker."""
    return int(_pool.processes)


def hostname() -> str:
    """Return the worker's name, e.g. ``w1@host``; empty in a process that is none."""
    return str(_pool.hostname)


def slots() -> int:
    """Return how many tasks the worker runs at once; none while its intake is closed."""
    return 0 if _pool.closed else int(_pool.slots)


def is_closed() -> bool:
    """Whether the worker is to take no more work, and to go on with what it has."""
    return bool(_pool.closed)


def close_intake(*, closed: bool) -> None:
    """Take no more work from now on, or again."""
    _pool.closed = closed


def consumption() -> tuple[int, int]:
    """Return how many tasks the worker runs, and how many others it has begun so far."""
    from celery.worker import state  # noqa: PLC0415 -- producers need none

    running = len(state.active_requests)
    return running, max(0, state.all_total_count[0] - running)


def knows(task: str) -> bool:
    """Whether this worker has *task*; a plain Celery app answers itself for what it lacks."""
    return getattr(current_app, "aq", None) is None or task in current_app.tasks


def names() -> bytes:
    """Return what the worker announces: its tasks, and the flows of an app of ours."""
    aq = getattr(current_app, "aq", None)
    return announced.names(current_app.tasks, aq.flows if aq is not None else ())


def give_up(payload: dict[str, Any], reason: str) -> None:
    """End a task that is given up as Celery would: result, chord, chain and errbacks."""
    headers, decoded = payload["headers"], payload["decoded"]
    args, kwargs, embed = decoded or ([], {}, None)
    fields = {**headers, **(embed or {}), "args": args, "kwargs": kwargs}
    fields |= {
        "properties": payload["properties"],
        "delivery_info": payload["properties"]["delivery_info"],
    }
    current_app.backend.mark_as_failure(
        headers["id"],
        WorkerLost(reason),
        request=Context(fields),
        store_result=not headers.get("ignore_result"),
    )
