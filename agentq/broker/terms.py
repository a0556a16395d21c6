"""The limits a transport works under: from our settings or, for a plain Celery app, defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from agentq.clock import milliseconds
from agentq.store.calls import Letters

if TYPE_CHECKING:
    from agentq.settings import Settings


@dataclass(frozen=True, slots=True)
class Terms:
    """All durations in milliseconds."""

    timeout_ms: int = 5_000
    """One call to the broker."""
    lease_ms: int = 15_000
    delivery_limit: int = 3
    """Deaths of a worker before what it ran is given up."""
    dedupe_ms: int = 600_000
    keep_ms: int = 604_800_000
    """How long an ended run is kept."""
    max_length: int = 100_000
    """Most messages a lane may hold."""
    max_bytes: int = 268_435_456
    """Most bytes they may have together."""
    max_payload: int = 262_144
    """Most bytes of arguments."""
    replicated: bool = False
    """Whether what is sent must have reached a replica."""
    park_ms: int = 86_400_000
    """How long a message waits for a worker that has its task."""
    letters: Letters = field(default_factory=Letters)
    """How dead letters are kept."""
    retries: str = "20 10"
    """Percent of attempts and number a second that may be retries."""

    @classmethod
    def of(cls, settings: Settings) -> Terms:
        """Return what *settings* say."""
        broker = settings.broker
        return cls(
            timeout_ms=milliseconds(broker.timeout),
            lease_ms=milliseconds(settings.worker.lease),
            delivery_limit=broker.delivery_limit,
            dedupe_ms=milliseconds(broker.dedupe_ttl),
            keep_ms=milliseconds(settings.runs.keep),
            max_length=broker.max_length,
            max_bytes=broker.max_bytes,
            max_payload=broker.max_payload,
            replicated=broker.durable == "replica",
            park_ms=milliseconds(broker.park_limit),
            letters=Letters(
                keep_ms=milliseconds(settings.dead.keep),
                max_number=settings.dead.max_number,
                max_bytes=settings.dead.max_bytes,
                max_payload=broker.max_payload,
            ),
            retries=str(settings.retry),
        )

    @property
    def timeout(self) -> timedelta:
        """Return the limit of one call."""
        return timedelta(milliseconds=self.timeout_ms)

    @property
    def wait_s(self) -> float:
        """Return how long an idle consumer waits at a time: well within half a lease."""
        return max(0.1, min(1.0, self.lease_ms / 4000))
