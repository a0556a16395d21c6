"""Which queue is which pool, and which priority is which lane.

A Celery queue is a pool; a Celery priority (0 the highest, as on kombu's Redis) is a lane. A
message without a priority is `normal`: kombu would make it the highest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agentq.errors import DefinitionError

if TYPE_CHECKING:
    from kombu import Queue

LANES = ("high", "normal", "long", "low")
DEFAULT_LANE = "normal"
DEFAULT_PRIORITY = 5

_PRIORITY_OF = {"high": 0, "normal": DEFAULT_PRIORITY, "low": 8, "long": 9}
_LANE_OF = ("high",) * 3 + ("normal",) * 4 + ("low",) * 2 + ("long",)


def lane_of(priority: int | None) -> str:
    """Return the lane of a Celery priority; out of range counts as the nearest."""
    if priority is None:
        return DEFAULT_LANE
    return _LANE_OF[min(max(int(priority), 0), 9)]


def priority_of(lane: str) -> int:
    """Return the Celery priority of a lane.

    Raises:
        DefinitionError: there is no such lane.
    """
    try:
        return _PRIORITY_OF[lane]
    except KeyError:
        raise DefinitionError(
            f"lane or priority {lane!r} is not one of {', '.join(LANES)}"
        ) from None


def queues(pools: Iterable[str]) -> list[Queue]:
    """Return the Celery queues of these pools, all on the anonymous exchange."""
    from kombu import Exchange, Queue  # noqa: PLC0415 -- a command that shows lanes needs no kombu

    return [Queue(name, exchange=Exchange(""), routing_key=name) for name in pools]


def route(
    _name: str, _args: object, _kwargs: object, _options: object, task: Any = None, **_: object
) -> dict[str, object] | None:
    """Send a step to its pool and lane (an entry of Celery's `task_routes`)."""
    step = getattr(task, "step", None)
    if step is None:
        return None
    return {"queue": step.pool, "priority": priority_of(step.lane)}
