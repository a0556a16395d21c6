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
import time
from typing import TYPE_CHECKING

from agentq.broker.terms import Terms
from agentq.clock import milliseconds
from agentq.errors import BrokerUnavailable
from agentq.store import calls

if TYPE_CHECKING:
    from agentq.settings import Settings
    from agentq.store.client import AsyncStore
    from agentq.timing.deadline import BrokerClock
    from agentq.worker.outcomes import Outcomes

logger = logging.getLogger(__name__)

EVERY = 0.5
"""Seconds between two rounds, give or take a half; sooner where something is due."""

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


def wait(workers: int, due_in: float | None, chance: float) -> float:
    """Return the seconds until the next round: sooner where something is due before it.

    *due_in* is in how many seconds; None: nothing is delayed. *chance* is 0-1: many workers, who
    all know when it is due, do not sweep at that moment together.
    """
    usual = pace(workers) * (0.5 + chance)
    if due_in is None:
        return usual
    behind = _SLACK + chance * EVERY / 4 * max(1.0, workers / FEW)
    return min(usual, max(due_in, 0.0) + behind)


class Sweeper:
    """One per worker process."""

    def __init__(
        self, *, store: AsyncStore, settings: Settings, clock: BrokerClock, outcomes: Outcomes
    ) -> None:
        """Keep the parts; *outcomes*: this worker's own, which it tells the cell."""
        self._store = store
        self._outcomes = outcomes
        self._clock = clock
        lease_ms = milliseconds(settings.worker.lease)
        self._keep_ms = milliseconds(settings.runs.keep)
        terms = Terms.of(settings)
        self._letters, self._retries = terms.letters, terms.retries
        self._limit = settings.broker.delivery_limit
        self._gap_ms = max(lease_ms // 2, 3000)
        self._soon = asyncio.Event()
        self._workers = 0
        self._due_ms = 0
        """When the first of what is delayed is due; 0: nothing is."""

    async def run(self) -> None:
        """Sweep until cancelled; then tell what has not been told."""
        try:
            await self._sweep()
        finally:
            with contextlib.suppress(BrokerUnavailable):
                await self._outcomes.tell(self._store)

    async def _sweep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait(self._workers, self._due_in(), random.random())):  # noqa: S311
                    await self._soon.wait()
            self._soon.clear()
            try:
                while await self.round():
                    pass
                if self._outcomes.due:
                    await self._outcomes.tell(self._store)
            except BrokerUnavailable as error:
                logger.debug("sweeper: %s", error)

    def _due_in(self) -> float | None:
        if not self._due_ms:
            return None
        return (self._due_ms - self._clock.now_ms(time.monotonic())) / 1000

    def sweep_after(self, after_ms: int) -> None:
        """Sweep when something that this worker has just delayed is due: a retry starts on time."""
        asyncio.get_running_loop().call_later(after_ms / 1000 + _SLACK, self._soon.set)

    async def round(self) -> bool:
        """Do one round; return whether there is more to do now."""
        prefix = self._store.keys.prefix
        self._due_ms = 0  # not known, where the broker does not answer
        reaped, promoted = await self._store.pipeline(
            [
                calls.reap(prefix, self._limit, self._gap_ms, self._keep_ms),
                calls.promote(
                    prefix, MOST, self._keep_ms, letters=self._letters, retries=self._retries
                ),
            ]
        )
        for reply in (reaped, promoted):
            if isinstance(reply, Exception):
                logger.error("sweeper: %s", reply)
                return False
        count, worker, self._workers = reaped
        if worker:
            logger.warning(
                "worker %s is gone: %d messages handed out again", worker.decode(), count
            )
        moved, expired, self._due_ms = promoted
        if expired:
            logger.info("%d runs ended behind their deadline", expired)
        return bool(worker) or moved >= MOST
