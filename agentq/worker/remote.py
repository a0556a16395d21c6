"""Remote control commands whose stock version looks at what our loop does not keep."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from celery.worker import control
from celery.worker import state as worker_state

from agentq.worker.sidecar import shown_arguments

if TYPE_CHECKING:
    from agentq.worker.delivery import Delivery
    from agentq.worker.loop import Loop

_INSTEAD = {
    "add_consumer": "start a worker with -Q",
    "cancel_consumer": "start a worker with -Q",
    "autoscale": "set worker.slots",
    "pool_grow": "set worker.slots",
    "pool_shrink": "set worker.slots",
    "pool_restart": "restart the worker",
    "rate_limit": "limits are not part of agentq's loop",
    "time_limit": "give the step a timeout",
}
"""Celery's commands that mean nothing here, and what to do instead."""

_ANSWER_S = 1.0
"""How long a command waits for the loop; one that is asked for later gets an error instead."""


def handlers(loop: Loop) -> dict[str, Any]:
    """Return the commands, by name."""

    def active(_state: Any, **_: Any) -> list[dict[str, Any]]:
        # Asked for on the loop, which alone changes what runs; commands come in the sidecar.
        running: Future[list[Delivery]] = Future()
        loop.call_threadsafe(lambda: running.set_result(loop.hands.active))
        return [_describe(delivery, loop.hostname) for delivery in running.result(_ANSWER_S)]

    def nothing(_state: Any, **_: Any) -> list[dict[str, Any]]:
        return []  # nothing waits in worker memory: no reserved, no scheduled tasks

    def revoke(state: Any, task_id: Any, terminate: bool = False, **options: Any) -> Any:  # noqa: FBT001, FBT002 -- Celery's signature
        answer = control.Panel.data["revoke"](state, task_id, terminate=False, **options)
        if terminate:
            ids = task_id if isinstance(task_id, list) else [task_id]
            for id_ in ids:
                loop.call_threadsafe(loop.hands.cancel_task, id_)
        return answer

    def shutdown(_state: Any, **_: Any) -> dict[str, str]:
        # Celery's raises SystemExit, which here would end the sidecar's thread and nothing else.
        worker_state.should_stop = 0
        return {"ok": "draining, then stopping"}

    return {
        "active": active,
        "reserved": nothing,
        "scheduled": nothing,
        "revoke": revoke,
        "shutdown": shutdown,
        **{command: _refusal(command, instead) for command, instead in _INSTEAD.items()},
    }


def _refusal(command: str, instead: str) -> Any:
    def refuse(_state: Any, *_: Any, **__: Any) -> dict[str, str]:
        return {"error": f"agentq's loop has no {command}: {instead}"}

    return refuse


def _describe(delivery: Delivery, hostname: str) -> dict[str, Any]:
    args, kwargs = shown_arguments(delivery)
    return {
        "id": delivery.id,
        "name": delivery.task.name,
        "args": args,
        "kwargs": kwargs,
        "type": delivery.task.name,
        "hostname": hostname,
        "time_start": delivery.born_ms / 1000,
        "acknowledged": False,
        "delivery_info": {
            "routing_key": delivery.pool,
            "priority": None,
            "redelivered": delivery.redelivered,
        },
        "worker_pid": os.getpid(),
    }
