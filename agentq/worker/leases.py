"""The process' lease, renewed from a thread of its own.

A step that blocks the loop for a while does not lose it; when the loop stands still for
`hang_timeout` renewing stops, so that a hung process does.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from agentq.clock import milliseconds, wall_ms
from agentq.errors import BrokerUnavailable
from agentq.host.supervisor import LeaseNote, Watchdog
from agentq.store import announced, calls, skew
from agentq.timing.deadline import BrokerClock

if TYPE_CHECKING:
    from agentq.settings import Settings
    from agentq.store.client import AsyncStore, Store

logger = logging.getLogger(__name__)


class Lease:
    """Holds one lease from `start` to `stop`."""

    def __init__(  # noqa: PLR0913 -- its parts
        self,
        *,
        store: Store,
        worker: str,
        lease: timedelta,
        hang_timeout: timedelta,
        clock: BrokerClock,
        report: Callable[[], bytes],
        on_lost: Callable[[str], None],
        names: bytes = b"",
    ) -> None:
        """Keep the parts; *on_lost* is called with *worker*, from the thread, once it is reaped.

        *names*: what it announces, as `store.announced` makes it.
        """
        self.worker = worker
        self._store = store
        self._lease_ms = milliseconds(lease)
        self._hang = hang_timeout.total_seconds()
        self._clock = clock
        self._report = report
        self._on_lost = on_lost
        self._names = names
        self._announced = False
        self.skew_ms = 0
        """How far this machine's wall clock is ahead of the broker's, as last seen."""
        self._watchdog = Watchdog()
        self._note = LeaseNote()
        self._beat = self._went = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take the lease and keep renewing it; safe twice.

        Raises:
            BrokerUnavailable: the broker did not answer.
        """
        if self._thread is not None:
            return
        self._store.ensure_functions()
        self._renew(first=True)
        self._note.write(self.worker)
        self._went = time.monotonic()
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="agentq-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing; the lease runs out unless it is released. Safe twice."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2)
        self._thread = None
        self._watchdog.close()

    def released(self) -> None:
        """Note that nothing is held under it any more."""
        self._note.remove()

    def beat(self) -> None:
        """Say that the loop moves; called by the loop several times a second.

        From here the supervisor hears that this process lives: it has to move, and the thread too.
        """
        self._beat = time.monotonic()
        self._watchdog.feed(moves=self.goes_round)

    @property
    def goes_round(self) -> bool:
        """Whether the thread does its rounds; those that find the broker away count.

        True as well while there is none: a lease that is lost is taken anew by the loop.
        """
        return self._thread is None or time.monotonic() - self._went < 2 * self._lease_ms / 1000

    def round(self) -> bool:
        """Renew once if the loop moves; return whether the lease is held.

        A broker that can not be reached is no reason to give up: leases do not run while nobody
        can renew them.
        """
        still = time.monotonic() - self._beat
        if still > self._hang:
            logger.error(
                "the event loop has stood still for %.1f s (worker.hang_timeout %.1f s): "
                "not renewing the lease; a step blocks it",
                still, self._hang,
            )  # fmt: skip
            return True
        try:
            held = self._renew(first=False)
        except BrokerUnavailable as error:
            logger.debug("lease not renewed: %s", error)
            return True
        if not held:
            self._on_lost(self.worker)
        return held

    def _run(self) -> None:
        # Spread: a fleet that was started together does not renew together.
        while not self._stop.wait(self._lease_ms / 3000 * random.uniform(0.8, 1.0)):  # noqa: S311
            if not self.round():
                return
            self._went = time.monotonic()

    def _renew(self, *, first: bool) -> bool:
        asked_ms = wall_ms()
        call = calls.renew(
            self._store.keys.prefix, self.worker, self._lease_ms, first=first, report=self._report()
        )
        now_ms, held = self._store.call(call)
        self.skew_ms = skew.learn(self._store.address, now_ms, asked_ms)
        self._clock.learn(now_ms, time.monotonic())
        if held and not self._announced:
            self._announced = announced.announce(self._store, self.worker, self._names)
        return bool(held)


async def release(store: AsyncStore, worker: str, settings: Settings) -> None:
    """Give up the lease of *worker*; what was held under it starts elsewhere, uncharged.

    Raises:
        BrokerUnavailable: the broker did not answer.
    """
    call = calls.release(
        store.keys.prefix, worker, died=False,
        limit=settings.broker.delivery_limit, keep_ms=milliseconds(settings.runs.keep),
    )  # fmt: skip
    while await store.call(call) >= calls.HANDED_BACK:
        pass
