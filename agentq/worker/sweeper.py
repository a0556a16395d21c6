"""What any worker does for the whole cell about twice a second.

Free the dead's work, move what is due, end what is late: each is one bounded function call, and
many workers doing it harms nobody. Very many would cost the server a share of its core (1,000
workers a tenth), so where there are more than a few, each sweeps less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING

from agentq.errors import BrokerUnavailable
from agentq.store import calls

if TYPE_CHECKING:
    from agentq.settings import Settings
    from agentq.store.client import AsyncStore

logger = logging.getLogger(__name__)

EVERY = 0.5
"""Seconds between two rounds, give or take a half: delayed work is on time within one second."""

FEW = 8
"""Workers that sweep at that pace; n times as many each take n times as long..."""

LONGEST = 4
"""...but not longer than this: most of them may be dead."""

_SLACK = 0.005
"""Seconds behind the due time, so that Redis' clock has reached it."""

MOST = 200
"""Delayed messages a call moves."""


def pace(workers: int) -> float:
    """Return the mean seconds between two rounds of one of so many workers; 0: not known."""
    return EVERY * min(max(1.0, workers / FEW), LONGEST)


class Sweeper:
    """One per worker process."""

    def __init__(self, *, store: AsyncStore, settings: Settings) -> None:
        """Keep the parts."""
        self._store = store
        lease_ms = int(settings.worker.lease.total_seconds() * 1000)
        self._keep_ms = int(settings.runs.keep.total_seconds() * 1000)
        self._dead_ms = int(settings.dead.keep.total_seconds() * 1000)
        self._max_payload = settings.broker.max_payload
        self._retries = str(settings.retry)
        self._limit = settings.broker.delivery_limit
        self._gap_ms = max(lease_ms // 2, 3000)
        self._soon = asyncio.Event()
        self._workers = 0

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pace(self._workers) * (0.5 + random.random())):  # noqa: S311
                    await self._soon.wait()
            self._soon.clear()
            try:
                while await self.round():
                    pass
            except BrokerUnavailable as error:
                logger.debug("sweeper: %s", error)

    def sweep_after(self, after_ms: int) -> None:
        """Sweep when something that this worker has just delayed is due: a retry starts on time."""
        asyncio.get_running_loop().call_later(after_ms / 1000 + _SLACK, self._soon.set)

    async def round(self) -> bool:
        """Do one round; return whether there is more to do now."""
        prefix = self._store.keys.prefix
        reaped, promoted = await self._store.pipeline(
            [
                calls.reap(prefix, self._limit, self._gap_ms, self._keep_ms),
                calls.promote(
                    prefix, MOST, self._keep_ms,
                    dead_ms=self._dead_ms, max_payload=self._max_payload, retries=self._retries,
                ),
            ]
        )  # fmt: skip
        for reply in (reaped, promoted):
            if isinstance(reply, Exception):
                logger.error("sweeper: %s", reply)
                return False
        count, worker, self._workers = reaped
        if worker:
            logger.warning(
                "worker %s is gone: %d messages handed out again", worker.decode(), count
            )
        moved, expired, _ = promoted
        if expired:
            logger.info("%d runs ended behind their deadline", expired)
        return bool(worker) or moved >= MOST
