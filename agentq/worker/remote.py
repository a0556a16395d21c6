"""Remote control commands whose stock version looks at what our loop does not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker import control

if TYPE_CHECKING:
    from agentq.worker.delivery import Delivery
    from agentq.worker.loop import Loop


def handlers(loop: Loop) -> dict[str, Any]:
    """Return the commands, by name."""

    def active(_state: Any, **_: Any) -> list[dict[str, Any]]:
        return [_describe(delivery, loop.hostname) for delivery in loop.hands.active]

    def nothing(_state: Any, **_: Any) -> list[dict[str, Any]]:
        return []  # nothing waits in worker memory: no reserved, no scheduled tasks

    def revoke(state: Any, task_id: Any, terminate: bool = False, **options: Any) -> Any:  # noqa: FBT001, FBT002 -- Celery's signature
        answer = control.Panel.data["revoke"](state, task_id, terminate=False, **options)
        if terminate:
            ids = task_id if isinstance(task_id, list) else [task_id]
            for id_ in ids:
                loop.call_threadsafe(loop.hands.cancel_task, id_)
        return answer

    return {"active": active, "reserved": nothing, "scheduled": nothing, "revoke": revoke}


def _describe(delivery: Delivery, hostname: str) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "name": delivery.task.name,
        "args": delivery.body[:200].decode(errors="replace"),
        "kwargs": "{}",
        "type": delivery.task.name,
        "hostname": hostname,
        "time_start": delivery.born_ms / 1000,
        "acknowledged": False,
        "delivery_info": {
            "routing_key": delivery.pool,
            "priority": None,
            "redelivered": delivery.attempts > 0,
        },
        "worker_pid": None,
    }
