"""What Celery's `inspect` asks of a consumer, answered for our loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.worker.loop import Loop


class Queues:
    """What `inspect active_queues` reads."""

    def __init__(self, queues: list[Any]) -> None:
        """Keep the *queues*."""
        self.queues = queues


class Described:
    """What `inspect stats` asks of a consumer's blueprint."""

    def __init__(self, loop: Loop) -> None:
        """Describe *loop*."""
        self._loop = loop

    def info(self, _: Any) -> dict[str, Any]:
        """Return the broker and the slots."""
        return {
            "broker": {"transport": "agentq", "hostname": str(self._loop.aq.address)},
            "prefetch_count": self._loop.pool.slots,
        }
