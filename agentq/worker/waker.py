"""Waits on the worker's own key for a wake-up or a cancel.

A key of its own, because a client blocked on a stream is tried again at each XADD: 1,000 idle
workers would cost the server 1.6 ms a message.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from agentq.errors import BrokerUnavailable
from agentq.store.client import AsyncStore

if TYPE_CHECKING:
    from agentq.store.address import Address

logger = logging.getLogger(__name__)

CANCEL = "cancel "
_SLACK = timedelta(seconds=3)


class Waker:
    """One per worker process."""

    def __init__(
        self,
        *,
        address: Address,
        worker: str,
        lease: timedelta,
        on_work: Callable[[], None],
        on_cancel: Callable[[str], None],
    ) -> None:
        """Keep the parts; a wait is shorter than half a lease."""
        wait = lease * 0.4
        self._seconds = max(wait.total_seconds(), 0.05)
        self._store = AsyncStore(address=address, timeout=wait + _SLACK)
        self._worker = worker
        self._on_work = on_work
        self._on_cancel = on_cancel

    async def run(self) -> None:
        """Wait until cancelled."""
        try:
            while True:
                key = self._store.keys.wake(self._worker)
                try:
                    found = await self._store.command("BLPOP", key, self._seconds)
                except BrokerUnavailable as error:
                    logger.debug("waker: %s", error)
                    # Spread, so that a fleet that lost its broker does not come back in step.
                    await asyncio.sleep(0.25 + 0.5 * random.random())  # noqa: S311
                    self._on_work()
                    continue
                if found:
                    self._told(found[1].decode())
        finally:
            await self._store.close()

    def rejoin(self, worker: str) -> None:
        """Wait on a new name's key, from the next wait on."""
        self._worker = worker
        self._on_work()

    def _told(self, token: str) -> None:
        if token.startswith(CANCEL):
            self._on_cancel(token.removeprefix(CANCEL))
        else:
            self._on_work()
