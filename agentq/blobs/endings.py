"""Payloads of steps that have ended, while their place can not be written: kept until it can.

The step has done its work, and doing it again costs more than its slot: so the ending waits, under
the lease, and writes again. Not for ever: a worker whose own place is wrong gives its steps to
others behind `blobs.write_limit`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta

from agentq.blobs.payloads import Blobs
from agentq.clock import format_duration
from agentq.errors import BlobsUnavailable, BrokerUnavailable

logger = logging.getLogger(__name__)

FIRST_S, LONGEST_S = 0.1, 5.0
"""Pauses between two tries."""

_AWAY = (BlobsUnavailable, BrokerUnavailable)
"""The broker as well: it has the cell's id, under which the place keeps them."""


class Endings:
    """One per process; safe between threads."""

    def __init__(self, *, blobs: Blobs, limit: timedelta) -> None:
        """Keep the parts; *limit*: for how long an ending waits."""
        self._blobs = blobs
        self._limit = limit
        self._lock = threading.Lock()
        self.waiting = 0
        """Ended steps that wait at this moment."""

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """Write the blobs of an ended step, blocking until the place can be written.

        Raises:
            BlobsUnavailable, BrokerUnavailable: not within the limit.
        """
        try:
            self._blobs.put(blobs)
        except _AWAY as error:
            with self._held(error):
                for pause in self._pauses():
                    time.sleep(pause)
                    with suppress(*_AWAY):
                        return self._blobs.put(blobs)
            raise

    async def aput(self, blobs: Mapping[str, bytes]) -> None:
        """Write the blobs of an ended step, as `put`."""
        try:
            await self._blobs.aput(blobs)
        except _AWAY as error:
            with self._held(error):
                for pause in self._pauses():
                    await asyncio.sleep(pause)
                    with suppress(*_AWAY):
                        return await self._blobs.aput(blobs)
            raise

    def _pauses(self) -> Iterator[float]:
        """Yield seconds until the next try, spread, while there is time for one."""
        until, pause = time.monotonic() + self._limit.total_seconds(), FIRST_S
        while time.monotonic() < until:
            yield pause * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter
            pause = min(2 * pause, LONGEST_S)

    @contextmanager
    def _held(self, error: Exception) -> Iterator[None]:
        """Count one that waits; say it of the first, and when the last has ended."""
        with self._lock:
            self.waiting += 1
            if self.waiting == 1:
                logger.warning(
                    "%s; steps that have ended wait for it in their slots, each for at most %s "
                    "(blobs.write_limit)",
                    error, format_duration(self._limit),
                )  # fmt: skip
        try:
            yield
        finally:
            with self._lock:
                self.waiting -= 1
                if not self.waiting:
                    logger.warning("no ended step waits for blob storage any more")
