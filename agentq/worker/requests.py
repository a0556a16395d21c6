"""Celery's request and "current task" for steps that share a thread.

Celery keeps both on stacks per thread. Here the stacks are told apart by a context variable: each
running step has a scope of its own, which its subtasks and its threads inherit, so that
`self.request`, `current_task` and the parent of what it publishes are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from threading import get_ident
from typing import TYPE_CHECKING, Any

from celery import _state
from celery.app.task import Context as Request

if TYPE_CHECKING:
    from celery import Celery

    from agentq.worker.delivery import Delivery


class Entered:
    """Makes a task and the request that *make* returns the current ones of this step: `with` it.

    The stacks tell running steps apart by it. Most steps never ask for their request: it is made
    when somebody looks at a stack.
    """

    __slots__ = ("_entered", "_make", "_task", "_token")

    def __init__(self, task: Any, make: Callable[[], Request]) -> None:
        """Keep the parts."""
        self._task = task
        self._make = make
        self._entered = False

    def __enter__(self) -> None:
        """Stand before the stacks."""
        self._token = _scope.set(self)

    def __exit__(self, *_: object) -> None:
        """Pop what was pushed."""
        if self._entered:
            self._task.request_stack.pop()
            _state._task_stack.pop()  # noqa: SLF001
        _scope.reset(self._token)

    def push(self) -> None:
        """Push task and request, the first time somebody looks at a stack."""
        if not self._entered:
            self._entered = True  # first: pushing looks at the stacks too
            _state._task_stack.push(self._task)  # noqa: SLF001 -- in broker/private_names.py
            self._task.request_stack.push(self._make())


_scope: ContextVar[Entered | None] = ContextVar("agentq_step", default=None)


def _ident() -> object:
    scope = _scope.get()
    if scope is None:
        return get_ident()
    scope.push()
    return scope


def separate_stacks(app: Celery) -> None:
    """Let each running step have stacks of its own; once per process, before any step runs."""
    _state._task_stack.__ident_func__ = _ident  # noqa: SLF001 -- in broker/private_names.py
    for task in app.tasks.values():
        task.request_stack.__ident_func__ = _ident


def request_of(
    delivery: Delivery,
    args: list[Any],
    kwargs: dict[str, Any],
    embed: dict[str, Any],
    hostname: str,
) -> dict[str, Any]:
    """Return the request's fields, as Celery's consumer would have put them together."""
    headers = delivery.envelope.headers
    properties = delivery.envelope.properties
    info = properties.get("delivery_info") or {}
    return {
        **headers,
        "args": args,
        "kwargs": kwargs,
        "callbacks": embed.get("callbacks"),
        "errbacks": embed.get("errbacks"),
        "chain": embed.get("chain"),
        "chord": embed.get("chord"),
        "hostname": hostname,
        "is_eager": False,
        "called_directly": False,
        "properties": properties,
        "reply_to": properties.get("reply_to"),
        "correlation_id": properties.get("correlation_id"),
        "retries": (headers.get("retries") or 0) + delivery.retries,
        "delivery_info": {
            "exchange": info.get("exchange", ""),
            "routing_key": info.get("routing_key", delivery.pool),
            "priority": properties.get("priority"),
            "redelivered": delivery.redelivered,
        },
    }


def bare_request(fields: dict[str, Any]) -> Request:
    """Return a request without the header scan of its constructor."""
    request = Request.__new__(Request)
    request.__dict__ = fields
    return request
