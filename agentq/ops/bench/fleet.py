"""Idle workers by the hundred in one process: what a worker does with its cell, without a worker.

Each is a real worker's `Pump` and `Waker`, with two connections of its own, under a lease; in place
of steps stand hands that end at once what they are handed. What is left out is the sweep, which
`herd` measures by itself, and the renewal of leases, which here last as long as the bench.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Self

from agentq.broker import routing
from agentq.broker.policy import InOrder
from agentq.clock import milliseconds
from agentq.errors import BenchFailed, BrokerUnavailable
from agentq.store import calls
from agentq.store.address import Address
from agentq.store.calls import Call
from agentq.store.client import AsyncStore, Store
from agentq.timing.deadline import BrokerClock
from agentq.worker.event_loop import loop_factory
from agentq.worker.pump import Pump
from agentq.worker.waker import Waker

POOL = "p"
KEEP_MS = 60_000

_SLOTS = 1000
_LEASE = timedelta(hours=1)
_WAIT = timedelta(seconds=15)
"""Of the default lease: the waker's wait depends on it."""
_POLL = timedelta(seconds=5)
_TIMEOUT = timedelta(seconds=5)
_START_S = 60.0


class _Counted(AsyncStore):
    """A store that counts its trips and notes when the last one was answered."""

    fetches = 0
    answered_at: float | None = None

    async def pipeline(self, calls_: Sequence[Call]) -> list[Any]:
        replies = await super().pipeline(calls_)
        self.fetches += sum(call[1] == "aq1_fetch" for call in calls_)
        if self.answered_at is None:
            self.answered_at = time.monotonic()
        return replies


class IdleWorker:
    """One of them; its methods from `room` to `take` are what `Pump` asks of a worker's hands."""

    def __init__(self, *, address: Address, name: str, on_taken: Callable[[], None]) -> None:
        """Keep the parts; *on_taken* is called, on the loop, for each message."""
        self.name = name
        self.woken = 0
        self.store = _Counted(address=address, timeout=_TIMEOUT)
        self._on_taken = on_taken
        hands: Any = self
        self._pump = Pump(
            store=self.store, worker=name, pools=[POOL], selection=InOrder(routing.LANES),
            hands=hands, on_lost=lambda _: None, clock=BrokerClock(), poll=_POLL,
            lease=_WAIT,
        )  # fmt: skip
        self._waker = Waker(
            address=address, worker=name, lease=_WAIT, on_work=self._wake, on_cancel=lambda _: None
        )

    def services(self) -> list[Coroutine[Any, Any, None]]:
        """Return what runs for as long as it lives."""
        return [self._pump.run(), self._waker.run()]

    def _wake(self) -> None:
        self.woken += 1
        self._pump.wake()

    def room(self) -> int:
        """Return the free slots."""
        return _SLOTS

    load = 0

    def holds(self, _stream: bytes, _entry: bytes) -> bool:
        """Hold nothing: it ends in the call that takes it."""
        return False

    def take(self, _pool: str, entry: list[Any]) -> None:
        """End an entry at once."""
        prefix = self.store.keys.prefix
        self._pump.complete(
            [calls.complete(prefix, entry[1], entry[2], "", KEEP_MS, [])], self.name
        )
        self._on_taken()


class Fleet:
    """Many idle workers on a loop in a thread of its own; use as a context manager."""

    def __init__(
        self, *, address: Address, count: int, on_taken: Callable[[], None] = lambda: None
    ) -> None:
        """Take the parts; nothing runs before `with`."""
        self._store = Store(address=address, timeout=_TIMEOUT)
        self.workers = [
            IdleWorker(address=address, name=f"w{number:04}", on_taken=on_taken)
            for number in range(count)
        ]
        self._thread = threading.Thread(target=self._run, name="agentq-fleet", daemon=True)
        self._stop = threading.Event()

    @property
    def woken(self) -> int:
        """Return how often one of them was told of work."""
        return sum(worker.woken for worker in self.workers)

    @property
    def fetches(self) -> int:
        """Return how often one of them asked for work, its polls among them."""
        return sum(worker.store.fetches for worker in self.workers)

    def __enter__(self) -> Self:
        """Give each a lease and start them; return when all are idle."""
        prefix = self._store.keys.prefix
        lease_ms = milliseconds(_LEASE)
        self._store.ensure_functions()
        self._store.pipeline(
            [
                calls.renew(prefix, worker.name, lease_ms, first=True, report=b"{}")
                for worker in self.workers
            ]
        )
        self._thread.start()
        end = time.monotonic() + _START_S
        while self._idle() < len(self.workers):
            if time.monotonic() > end:
                raise BenchFailed(f"{self._idle()} of {len(self.workers)} idle workers are ready")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        self._stop.set()
        self._thread.join()
        self._store.close()

    def _idle(self) -> int:
        try:
            return int(self._store.command("ZCARD", f"{self._store.keys.prefix}idle:{POOL}"))
        except BrokerUnavailable:
            return 0

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory("uvloop")) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        tasks = [
            asyncio.create_task(service, name=worker.name)
            for worker in self.workers
            for service in worker.services()
        ]
        await asyncio.get_running_loop().run_in_executor(None, self._stop.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.store.close() for worker in self.workers))
