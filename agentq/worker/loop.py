"""The worker's main loop: what Celery calls the consumer, as one asyncio loop in the main thread.

Its life::

    lease -> warm -> ready -> | pump, waker, sweeper | -> drain -> release
    SIGTERM  stop fetching, let running steps end until `drain_timeout`, hand the rest back
    again    hand back at once
    lease lost (stopped, cut off, hung for too long): let go of everything, go on under a new name

Celery's worker starts it in place of its own consumer (`worker_consumer`), so `celery worker`, its
options, signals and `inspect` work. What runs is in `hands`, the traffic with the cell in `pump`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
from celery import signals
from celery.worker import state as worker_state

from agentq.broker import build, routing
from agentq.broker.consumed import Consumed
from agentq.broker.policy import InOrder
from agentq.errors import BrokerUnavailable
from agentq.host.affinity import move
from agentq.host.allocator import live
from agentq.host.process import OwnMemory
from agentq.store import announced, calls
from agentq.store.client import AsyncStore, Store
from agentq.store.multiplexer import Multiplexer
from agentq.timing.deadline import BrokerClock
from agentq.worker.described import Described, Queues
from agentq.worker.event_loop import loop_factory
from agentq.worker.exhaustion import Exhaustion, named
from agentq.worker.hands import Hands
from agentq.worker.joined import JoinReader
from agentq.worker.leases import Lease, release
from agentq.worker.load import NO_MEMORY, LoadWatch, memory_limit
from agentq.worker.parts import Parts
from agentq.worker.pump import Pump
from agentq.worker.remote import handlers
from agentq.worker.requests import separate_stacks
from agentq.worker.sidecar import Sidecar, TaskEvents
from agentq.worker.suspects import Suspects
from agentq.worker.sweeper import Sweeper
from agentq.worker.threads import Threads
from agentq.worker.waker import Waker
from agentq.worker.warmup import keep_what_is_there, warm_worker
from agentq.worker.watch import LoopWatch

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ
    from agentq.host.plan import Process
    from agentq.settings import Pool, Settings

logger = logging.getLogger(__name__)

TICK = 0.1
"""Seconds between two looks at Celery's stop flags, and two beats for the lease."""


class Loop:
    """The consumer of one worker process."""

    def __init__(
        self,
        _on_task_request: Any = None,
        *,
        app: Any,
        hostname: str,
        pool: Any,
        controller: Any,
        init_callback: Callable[[Any], None] | None = None,
        **_: Any,
    ) -> None:
        """Take what Celery's worker gives its consumer; *init_callback* is called when ready."""
        self.app = app
        self.aq: AgentQ = app.aq
        self.hostname = hostname
        self.pool = pool
        self.controller = controller
        self.event_dispatcher: Any = None  # the sidecar's, for Celery's remote control
        self.blueprint = Described(self)
        self.worker = self._new_name()
        self._ready_callback = init_callback
        self._settings: Settings = self.aq.settings
        self._clock = BrokerClock()
        self._suspects = Suspects(app=self.aq, hostname=hostname, clock=self._clock)
        self._allocator, self._memory = str(live()), OwnMemory()
        self._told = 0  # how often a signal told this worker to go: the second time means at once
        self._leaving = False
        self._consumed = Consumed()
        self._unended = 0  # steps that the drain did not wait for
        self._rejoining: asyncio.Task[None] | None = None

    # -- what Celery calls ------------------------------------------------------------------------

    def start(self) -> None:
        """Run until the worker is told to stop."""
        separate_stacks(self.app)
        signals.worker_shutting_down.connect(self._on_signal)
        worker_state.maybe_shutdown()
        loop = loop_factory(self._settings.worker.loop)
        with named(), asyncio.Runner(loop_factory=loop) as runner:
            runner.run(self._main())
        worker_state.maybe_shutdown()

    def _on_signal(self, **_: Any) -> None:
        self._told += 1

    def stop(self) -> None:
        """Do nothing: `start` has returned when Celery calls this."""

    terminate = close = shutdown = stop

    @cached_property
    def task_consumer(self) -> Any:
        """Return what `inspect active_queues` reads."""
        return Queues(list(self.app.amqp.queues.consume_from.values()))

    @property
    def pools(self) -> list[str]:
        """Return the pools this process works for."""
        return list(self.app.amqp.queues.consume_from)

    def call_threadsafe(self, function: Callable[..., Any], *args: Any) -> None:
        """Call *function* on the loop, from another thread."""
        self._loop.call_soon_threadsafe(function, *args)

    def take_seat(self, seat: Process) -> None:
        """Go over to the cores and the memory limit of *seat*, on the loop.

        Slots, threads, children and the memory's node are as they began.
        """
        move(seat.cores)
        self._processes.move(seat.children or [seat.cores])
        self._load.limit(memory_limit(self._pool, seat))
        logger.info("took another seat: %s", seat.reason)

    # -- its life ---------------------------------------------------------------------------------

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = self._new_store()
        self._lease_store = Store(address=self.aq.address, timeout=self._settings.worker.lease / 3)
        if not await self._take_lease():
            return
        self._build()
        self._beating = self._loop.create_task(self._beat(), name="agentq-beat")
        self._sidecar.start()
        await self._warm()
        self._services = self._start_services()
        self._watch.start()
        if self._ready_callback is not None:
            self._ready_callback(self)
        try:
            await self._until_told(self._services)
            await self._drain()
        finally:
            await self._shut(self._services)

    def _new_name(self) -> str:
        """Return a name that no process had before: a lease is never taken up again."""
        return f"{self.hostname}#{uuid4().hex[:8]}"

    def _new_store(self) -> AsyncStore:
        return AsyncStore(address=self.aq.address, timeout=self._settings.broker.timeout)

    def _build(self) -> None:
        settings = self._settings
        self._threads = Threads(count=self.controller.thread_count())
        self._processes = self.controller.new_processes()
        events = TaskEvents(enabled=bool(self.controller.task_events), on_error=self._on_error)
        cell = Multiplexer(self._store)
        parts = Parts(
            app=self.aq,
            hostname=self.hostname,
            cell=cell,
            clock=self._clock,
            threads=self._threads,
            processes=self._processes,
            joins=JoinReader(app=self.aq, cell=cell),
            events=events,
        )
        self.hands = Hands(
            parts=parts, slots=self.pool.slots, suspects=self._suspects, complete=self._complete
        )
        self._pump = Pump(
            store=self._new_store(),
            worker=self.worker,
            pools=self.pools,
            selection=InOrder(self._pool.lanes if self._pool else routing.LANES),
            hands=self.hands,
            on_lost=self._on_lost,
            on_error=self._on_error,
            clock=self._clock,
            poll=settings.worker.poll,
            lease=settings.worker.lease,
        )
        self._exhaustion = Exhaustion(pump=self._pump, hands=self.hands)
        self._waker = Waker(
            address=self.aq.address, worker=self.worker, lease=settings.worker.lease,
            on_work=self._woken, on_cancel=self.hands.cancel_run,
        )  # fmt: skip
        self._sweeper = Sweeper(
            store=self._store, settings=settings, clock=self._clock, outcomes=events.outcomes
        )
        self._load = LoadWatch(
            hands=self.hands, limit_bytes=memory_limit(self._pool, self.controller.seat),
            children=lambda: self._processes.pids, on_room=self._pump.wake, on_full=self._leave,
            adaptive=settings.worker.slots_mode == "adaptive",
        )  # fmt: skip
        self._watch = LoopWatch(loop=self._loop, hands=self.hands)
        self._sidecar = Sidecar(consumer=self, events=events, handlers=handlers(self))

    def _start_services(self) -> list[asyncio.Task[None]]:
        running = {
            "pump": self._pump.run(), "waker": self._waker.run(), "sweeper": self._sweeper.run(),
            "load": self._load.run(), "exhaustion": self._exhaustion.run(),
        }  # fmt: skip
        return [self._loop.create_task(run, name=f"agentq-{name}") for name, run in running.items()]

    async def _warm(self) -> None:
        """Do before readiness what the first step would wait for."""
        self._suspects.preload()
        if self.hands.has_threads:
            self._threads.start()
        await self._processes.start()
        within = self._settings.worker.warm_timeout
        await warm_worker(self.aq.warmers, self._threads, within=within)
        with contextlib.suppress(BrokerUnavailable):  # the pump waits for it
            await self._store.command("PING")
        keep_what_is_there(self._settings.worker.gc_threshold)

    async def _beat(self) -> None:
        """Say that the loop moves, from before the warm-up to the end."""
        while True:
            self._lease.beat()
            self._watch.beat()
            await asyncio.sleep(TICK)

    async def _until_told(self, services: list[asyncio.Task[None]]) -> None:
        while not _told_to_stop():
            for service in services:
                if service.done():
                    service.result()  # one that ends by an error takes the process with it
            await asyncio.sleep(TICK)

    async def _drain(self) -> None:
        """Let running steps end; what does not within `drain_timeout` is handed back."""
        self._pump.stop_fetching()
        until = time.monotonic() + self._settings.worker.drain_timeout.total_seconds()
        if len(self.hands):
            logger.info("draining: steps that still run: %d", len(self.hands))
        while len(self.hands) or not self._pump.idle:
            if time.monotonic() > until or worker_state.should_terminate or self._told > 1:
                break
            await asyncio.sleep(0.02)
        self._leaving = True
        self._unended = len(self.hands)
        await self.hands.leave(within=2)

    def _leave(self) -> None:
        if not _told_to_stop():
            worker_state.should_stop = NO_MEMORY

    async def _shut(self, services: list[asyncio.Task[None]]) -> None:
        self._leaving = True
        self._beating.cancel()
        self._lease.stop()
        self._watch.stop()
        for service in services:
            service.cancel()
        await asyncio.wait(services, timeout=2)
        await self._release()
        await self.aq.close_services()
        await self._processes.stop()
        await self._suspects.stop()
        self._threads.stop()
        await self._loop.run_in_executor(None, self._sidecar.stop)
        await self._store.close()
        self._lease_store.close()

    async def _release(self) -> None:
        if worker_state.should_stop == NO_MEMORY and self._unended:
            # Not released they become suspects: one may be the cause, and would fill every worker.
            logger.warning("what runs here starts elsewhere, alone, when the lease ends")
            return
        try:
            await release(self._store, self.worker, self._settings)
            self._lease.released()
        except BrokerUnavailable as error:
            logger.warning("%s; what this worker held is free when its lease ends", error)

    def _on_error(self, error: Exception) -> None:
        self._exhaustion.met(error)

    def _woken(self) -> None:
        if moment := self.hands.moment:
            self._loop.call_later(moment, self._pump.wake)
        else:
            self._pump.wake()

    def _complete(self, ending: Sequence[calls.Call], task_id: str) -> None:
        self._pump.complete(ending, task_id)
        if after_ms := calls.delay_of(ending[-1]):
            self._sweeper.sweep_after(after_ms)

    # -- the lease --------------------------------------------------------------------------------

    async def _take_lease(self) -> bool:
        """Take a lease, however long the broker stays away; False when told to stop meanwhile."""
        lease = Lease(
            store=self._lease_store,
            worker=self.worker,
            lease=self._settings.worker.lease,
            hang_timeout=self._settings.worker.hang_timeout,
            clock=self._clock,
            report=self._report,
            on_lost=lambda worker: self.call_threadsafe(self._on_lost, worker),
            names=announced.names(self.app.tasks, self.aq.flows),
        )
        said = False
        while not _told_to_stop():
            try:
                lease.start()
            except BrokerUnavailable as error:
                if not said:
                    logger.warning("%s; waiting for it", error)
                    said = True
                await asyncio.sleep(0.25 + 0.5 * random.random())  # noqa: S311 -- a fleet's, spread
            else:
                self._lease = lease
                return True
        return False

    def _on_lost(self, worker: str) -> None:
        """Begin anew: what this process held runs elsewhere, and what it would write is refused.

        *worker* is the name that has no lease; several say it, some when it is long replaced.
        """
        if self._leaving or self._rejoining is not None or worker != self.worker:
            return
        logger.error(
            "the lease of %s is lost (stopped, cut off or hung for longer than worker.lease): "
            "what it ran (steps: %d) runs elsewhere; taking a new one",
            self.worker, len(self.hands),
        )  # fmt: skip
        self._rejoining = self._loop.create_task(self._rejoin(), name="agentq-rejoin")

    async def _rejoin(self) -> None:
        self.hands.cancel_all()
        self._lease.stop()
        self.worker = self._new_name()
        if await self._take_lease():
            self._pump.rejoin(self.worker)
            self._waker.rejoin(self.worker)
        self._rejoining = None

    def _report(self) -> bytes:
        """Return what the worker says of itself with each renewal."""
        begun = hasattr(self, "_services")
        running = len(self.hands) if begun else 0
        slots = self.hands.slots if begun and not _told_to_stop() else 0
        report = {
            **build.identity(),
            "hostname": self.hostname,
            "pools": self.pools,
            "cores": sorted(os.sched_getaffinity(0)),
            "lanes": self._pool.lanes if self._pool else routing.LANES,
            "slots": slots,
            "suspects": self._suspects.at_once,
            "skew_ms": self._lease.skew_ms if hasattr(self, "_lease") else 0,
            **self._consumed.report(running, worker_state.all_total_count[0], slots),
            "rss": self._memory.rss_bytes(),
            "allocator": self._allocator,
        }
        rare = {"unwritten": self.aq.blob_endings.waiting, "near": begun and self._exhaustion.near}
        return orjson.dumps(report | {name: said for name, said in rare.items() if said})

    # -- what the settings say --------------------------------------------------------------------

    @property
    def _pool(self) -> Pool | None:
        """Return what the settings say of the first pool; None: a plain Celery queue."""
        return self._settings.pools.get(self.pools[0])


def _told_to_stop() -> bool:
    return worker_state.should_stop is not None or worker_state.should_terminate is not None
