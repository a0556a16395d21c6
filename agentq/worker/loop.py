"""The worker's main loop: what Celery calls the consumer, as one asyncio loop in the main thread.

    start: lease -> warm -> ready -> | pump, wake, sweep, tick | -> drain -> release
    SIGTERM  stop fetching, let running steps end until `drain_timeout`, hand the rest back
    again    hand back at once

Celery's worker starts it where it would start its own consumer (`worker_consumer`), so `celery -A
app worker`, its options, signals and `inspect` work.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
from celery import bootsteps
from celery.worker import state as worker_state

from agentq.broker import routing
from agentq.broker.app import milliseconds
from agentq.errors import BrokerUnavailable
from agentq.store import calls
from agentq.store.client import AsyncStore, Store
from agentq.store.multiplexer import Multiplexer
from agentq.timing.deadline import BrokerClock
from agentq.worker.delivery import Delivery, Settled, Unknown, judge
from agentq.worker.joined import JoinReader
from agentq.worker.leases import Lease
from agentq.worker.parts import Parts
from agentq.worker.policy import InOrder
from agentq.worker.processes import Processes
from agentq.worker.pump import Pump
from agentq.worker.remote import handlers
from agentq.worker.requests import separate_stacks
from agentq.worker.sidecar import Sidecar, TaskEvents
from agentq.worker.sweeper import Sweeper
from agentq.worker.threads import Threads
from agentq.worker.tracer import Tracer, is_async
from agentq.worker.waker import Waker

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ

logger = logging.getLogger(__name__)

TICK = 0.1
"""Seconds between two looks at Celery's stop flags, and two beats for the lease."""

PARK_MS = 5000
"""How long a message that this worker does not know waits before it is handed out again."""


class Loop:
    """The consumer of one worker process."""

    def __init__(self, on_task_request: Any = None, *, app: Any, hostname: str, pool: Any,
                 controller: Any, init_callback: Any = None, **_: Any) -> None:  # fmt: skip
        """Take what Celery's worker gives its consumer."""
        self.app = app
        self.aq: AgentQ = app.aq
        self.hostname = hostname
        self.pool = pool
        self.controller = controller
        self.event_dispatcher: Any = None
        self.blueprint = _Described(self)
        self.worker = self._new_name()
        self._ready_callback = init_callback
        self._settings = self.aq.settings
        self._running: dict[bytes, tuple[asyncio.Task[None], Delivery]] = {}
        self._runs: defaultdict[str, set[bytes]] = defaultdict(set)
        self._stopping = False
        self._rejoining: asyncio.Task[None] | None = None
        self._clock = BrokerClock()
        self.state = bootsteps.RUN

    # -- what Celery calls ------------------------------------------------------------------------

    def start(self) -> None:
        """Run until the worker is told to stop."""
        separate_stacks(self.app)
        worker_state.maybe_shutdown()
        with asyncio.Runner(loop_factory=_loop_factory(self._settings.worker.loop)) as runner:
            runner.run(self._main())
        worker_state.maybe_shutdown()

    def stop(self) -> None:
        """Do nothing: `start` has returned when Celery calls this."""

    terminate = close = shutdown = stop

    @cached_property
    def task_consumer(self) -> Any:
        """Return what `inspect active_queues` reads."""
        return _Queues(list(self.app.amqp.queues.consume_from.values()))

    @property
    def pools(self) -> list[str]:
        """Return the pools this process works for."""
        return list(self.app.amqp.queues.consume_from)

    @property
    def active(self) -> list[Delivery]:
        """Return what runs."""
        return [delivery for _, delivery in self._running.values()]

    def _new_name(self) -> str:
        """Return a name that no process had before: a lease is never taken up again."""
        return f"{self.hostname}#{uuid4().hex[:8]}"

    # -- the main coroutine -----------------------------------------------------------------------

    async def _main(self) -> None:
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self._store = AsyncStore(address=self.aq.address, timeout=settings.broker.timeout)
        self._lease_store = Store(address=self.aq.address, timeout=settings.worker.lease / 3)
        lease = await self._take_lease()
        if lease is None:
            return
        self._lease = lease
        self._build()
        self._sidecar.start()
        await self._warm()
        services = [
            self._loop.create_task(part.run(), name=f"agentq-{name}")
            for name, part in (
                ("pump", self._pump), ("waker", self._waker), ("sweeper", self._sweeper),
            )
        ]  # fmt: skip
        if self._ready_callback is not None:
            self._ready_callback(self)
        try:
            await self._until_told(services)
            await self._drain()
        finally:
            await self._shut(services)

    def _build(self) -> None:
        settings = self._settings
        self._threads = Threads(count=settings.worker.threads)
        modules = sorted({step.function.__module__ for step in self._cpu_steps()})
        self._processes = Processes(count=self._cpu_count() if modules else 0, modules=modules)
        self.events = TaskEvents(enabled=bool(self.controller.task_events))
        cell = Multiplexer(self._store)
        parts = Parts(
            app=self.aq,
            hostname=self.hostname,
            cell=cell,
            clock=self._clock,
            threads=self._threads,
            processes=self._processes,
            joins=JoinReader(app=self.aq, cell=cell),
            events=self.events,
        )
        self._tracer = Tracer(parts)
        lanes = settings.pools[self.pools[0]].lanes if self.pools[0] in settings.pools else routing.LANES
        self._pump = Pump(
            store=AsyncStore(address=self.aq.address, timeout=settings.broker.timeout),
            worker=self.worker,
            pools=self.pools,
            selection=InOrder(lanes),
            room=self._room,
            used=lambda: len(self._running),
            deliver=self._deliver,
            holds=lambda stream, entry: stream + b"|" + entry in self._running,
            on_lost=self._on_lost,
            clock=self._clock,
            poll=settings.worker.poll,
        )
        self._waker = Waker(
            address=self.aq.address,
            worker=self.worker,
            lease=settings.worker.lease,
            on_work=self._pump.wake,
            on_cancel=self._cancel_run,
        )
        self._sweeper = Sweeper(store=self._store, settings=settings)
        self._sidecar = Sidecar(consumer=self, events=self.events, handlers=handlers(self))
        self._has_threads = any(
            not is_async(task) or (task.step and task.step.kind == "thread") for name, task in self.app.tasks.items()
            if not name.startswith("celery.")
        )  # fmt: skip

    async def _take_lease(self) -> Lease | None:
        """Take the lease, however long the broker stays away; None when told to stop meanwhile."""
        lease = Lease(
            store=self._lease_store,
            worker=self.worker,
            lease=self._settings.worker.lease,
            hang_timeout=self._settings.worker.hang_timeout,
            clock=self._clock,
            report=self._report,
            on_lost=lambda: self._loop.call_soon_threadsafe(self._on_lost),
        )
        said = False
        while not _told_to_stop():
            try:
                lease.start()
            except BrokerUnavailable as error:
                if not said:
                    logger.error("%s; waiting for it", error)
                    said = True
                await asyncio.sleep(0.5)
            else:
                return lease
        return None

    async def _warm(self) -> None:
        """Do before readiness what the first step would wait for."""
        await self._processes.start()
        await self._store.command("PING")
        gc.collect()
        gc.freeze()  # what exists now is never garbage: do not look at it again
        gc.set_threshold(self._settings.worker.gc_threshold, 50, 50)

    async def _until_told(self, services: list[asyncio.Task[None]]) -> None:
        while not _told_to_stop():
            self._lease.beat()
            for service in services:
                if service.done():
                    service.result()  # a service ends only by an error: the process goes with it
            await asyncio.sleep(TICK)

    # -- work -------------------------------------------------------------------------------------

    def _room(self) -> int:
        room = self._settings.worker.slots if self.pool.slots is None else self.pool.slots
        room -= len(self._running)
        if self._has_threads:
            # Few are held that can not start: another worker may have a thread for them.
            room = min(room, 2 * self._threads.count - self._threads.used)
        return room

    def _deliver(self, pool: str, entry: list[Any]) -> None:
        verdict = judge(entry, pool=pool, tasks=self.app.tasks, flows=self.aq.flows)
        match verdict:
            case Delivery():
                self.events.received(verdict)
                task = self._loop.create_task(self._work(verdict), name=verdict.id)
                self._running[verdict.key] = (task, verdict)
                if verdict.run:
                    self._runs[verdict.run].add(verdict.key)
            case Settled(stream, entry_id, run, effects, why):
                logger.info("ended unstarted: %s", why)
                prefix, keep = self._store.keys.prefix, milliseconds(self._settings.runs.keep)
                end = calls.complete(prefix, stream, entry_id, "", keep, effects)
                self._pump.complete([end], run or "message")
            case Unknown(lane, stream, entry_id, why):
                logger.warning("handed back for a worker that has it: %s", why)
                prefix = self._store.keys.prefix
                end = calls.fail(prefix, lane, stream, entry_id, after_ms=PARK_MS, retry=False)
                self._pump.complete([end], why)

    async def _work(self, delivery: Delivery) -> None:
        try:
            ending = await self._tracer.run(delivery)
        except asyncio.CancelledError:
            if self._stopping:
                return  # still this worker's: `release` hands it back uncharged
            ending = self._abandoned(delivery)
        except BrokerUnavailable as error:
            logger.warning("%s[%s]: %s; handed back", delivery.task.name, delivery.id, error)
            ending = [self._again(delivery)]
        except Exception:
            logger.exception("%s[%s]: internal error", delivery.task.name, delivery.id)
            ending = [self._again(delivery)]
        finally:
            self._forget(delivery)
        worker_state.all_total_count[0] += 1
        worker_state.total_count[delivery.task.name] += 1
        self._pump.complete(ending, delivery.id)

    def _forget(self, delivery: Delivery) -> None:
        self._running.pop(delivery.key, None)
        if delivery.run:
            entries = self._runs[delivery.run]
            entries.discard(delivery.key)
            if not entries:
                del self._runs[delivery.run]

    def _abandoned(self, delivery: Delivery) -> list[calls.Call]:
        """Return the end of a step whose run was cancelled: no effects."""
        keep = milliseconds(self._settings.runs.keep)
        prefix = self._store.keys.prefix
        return [calls.complete(prefix, delivery.stream, delivery.entry, delivery.run, keep, [])]

    def _again(self, delivery: Delivery) -> calls.Call:
        lane = f"{delivery.pool}:{delivery.lane}"
        prefix = self._store.keys.prefix
        return calls.fail(
            prefix, lane, delivery.stream, delivery.entry, after_ms=1000, retry=False
        )

    def _cancel_run(self, run: str) -> None:
        for entry in list(self._runs.get(run, ())):
            self._running[entry][0].cancel()

    def call_threadsafe(self, function: Callable[..., Any], *args: Any) -> None:
        """Call *function* on the loop, from another thread."""
        self._loop.call_soon_threadsafe(function, *args)

    def cancel_task(self, task_id: str) -> bool:
        """Cancel a running task by its id; return whether it ran here."""
        found = [task for task, delivery in self._running.values() if delivery.id == task_id]
        for task in found:
            task.cancel()
        return bool(found)

    def _on_lost(self) -> None:
        """Begin anew: what this process held runs elsewhere, and what it would write is refused."""
        if self._stopping or self._rejoining is not None:
            return
        logger.error(
            "the lease of %s is lost (stopped, cut off or hung for longer than worker.lease): "
            "its %d steps run elsewhere; taking a new one", self.worker, len(self._running),
        )  # fmt: skip
        self._rejoining = self._loop.create_task(self._rejoin(), name="agentq-rejoin")

    async def _rejoin(self) -> None:
        for task, _ in list(self._running.values()):
            task.cancel()
        self._lease.stop()
        self.worker = self._new_name()
        lease = await self._take_lease()
        if lease is not None:
            self._lease = lease
            self._pump.rejoin(self.worker)
            self._waker.rejoin(self.worker)
        self._rejoining = None

    # -- the end ----------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Let running steps end; what does not within `drain_timeout` is handed back."""
        self._pump.stop_fetching()
        until = time.monotonic() + self._settings.worker.drain_timeout.total_seconds()
        if self._running:
            logger.info("draining: %d steps run", len(self._running))
        while (self._running or not self._pump.idle) and time.monotonic() < until:
            if worker_state.should_terminate:
                break
            self._lease.beat()
            await asyncio.sleep(0.02)
        self._stopping = True
        running = [task for task, _ in self._running.values()]
        for task in running:
            task.cancel()
        if running:
            logger.warning("handing back %d steps", len(running))
            await asyncio.wait(running, timeout=2)

    async def _shut(self, services: list[asyncio.Task[None]]) -> None:
        self._lease.stop()
        for service in services:
            service.cancel()
        await asyncio.wait(services, timeout=2)
        await self._release()
        await self.aq.close_services()
        await self._processes.stop()
        self._threads.stop()
        await self._loop.run_in_executor(None, self._sidecar.stop)
        await self._store.close()
        self._lease_store.close()

    async def _release(self) -> None:
        settings = self._settings
        call = calls.release(
            self._store.keys.prefix, self.worker, died=False,
            limit=settings.broker.delivery_limit, keep_ms=milliseconds(settings.runs.keep),
        )  # fmt: skip
        try:
            while await self._store.call(call) >= 500:  # noqa: PLR2004 -- one call's most
                pass
        except BrokerUnavailable as error:
            logger.warning("%s; what this worker held is free when its lease ends", error)

    # -- small things -----------------------------------------------------------------------------

    def _cpu_steps(self) -> list[Any]:
        return [step for step in self.aq.steps.values() if step.kind == "cpu"]

    def _cpu_count(self) -> int:
        return self._settings.worker.cpu_processes or len(os.sched_getaffinity(0))

    def _report(self) -> bytes:
        return orjson.dumps(
            {
                "hostname": self.hostname,
                "pid": os.getpid(),
                "pools": self.pools,
                "cores": sorted(os.sched_getaffinity(0)),
                "running": len(self._running),
                "slots": self.pool.slots or self._settings.worker.slots,
                "done": worker_state.all_total_count[0],
            }
        )


def _told_to_stop() -> bool:
    return worker_state.should_stop is not None or worker_state.should_terminate is not None


def _loop_factory(kind: str) -> Any:
    if kind == "uvloop":
        try:
            import uvloop  # noqa: PLC0415 -- an extra
        except ImportError:
            logger.warning("uvloop is not installed: pip install 'agentq[worker]'; using asyncio")
        else:
            return uvloop.new_event_loop
    return asyncio.new_event_loop


class _Queues:
    def __init__(self, queues: list[Any]) -> None:
        self.queues = queues


class _Described:
    """What `inspect stats` asks of a consumer's blueprint."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def info(self, _: Any) -> dict[str, Any]:
        """Return the broker and the slots."""
        return {
            "broker": {"transport": "agentq", "hostname": str(self._loop.aq.address)},
            "prefetch_count": self._loop.pool.slots,
        }
