"""Celery's worker with a pool of its own (`worker.stock_pool`, `-P`): warmed, watched, handed back.

    connect, lease -> children up, warm -> ready -> | Celery's loop | -> Celery's shutdown

What `@aq.warm` declares, of either kind, is done where tasks run:

    prefork   in each child, also in one that takes another's place
    threads   an `async def` in each thread, which has a loop of its own; a `def` once, before
    solo      in the worker

Signs of life come from Celery's loop, so a blocked one gives none, and only while the lease's
thread goes round. A thread gives them where the loop is excused: while it waits for a broker that
is away, and under solo, whose tasks stand in its place. A solo worker that is stopped, or keeps the
GIL, is noticed; a task of it that hangs is not.

Prefork's children end with the worker: Celery has the kernel kill them. So nothing runs any more
when what they held is handed back.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery import bootsteps, signals
from celery.apps.worker import Worker as CeleryWorker
from celery.concurrency import solo, thread
from celery.worker import state as worker_state
from celery.worker.consumer.tasks import Tasks

from agentq.broker import worker_app
from agentq.broker.lease_keeper import keeper_of
from agentq.broker.task import run_coroutine
from agentq.broker.terms import Terms
from agentq.broker.warming import KINDS
from agentq.host.affinity import move, pin
from agentq.host.supervisor import LeaseNote, Watchdog
from agentq.worker.load import LOOK_S, NO_MEMORY, LoadWatch, memory_limit
from agentq.worker.threads import Threads
from agentq.worker.warmup import warm_worker

if TYPE_CHECKING:
    from agentq.broker.warming import Warmer
    from agentq.flows.app import AgentQ
    from agentq.host.plan import Process
    from agentq.settings import Pool

_UP_S = 0.05
"""Seconds between two looks whether all children are up."""


class Worker(CeleryWorker):  # type: ignore[misc]
    """What `celery worker` and `agentq worker` start under one of Celery's pools."""

    aq: AgentQ
    seat: Process | None = None
    """What the plan of this machine has for it; None: it was started without one."""

    def on_before_init(self, *, seat: Process | None = None, **kwargs: Any) -> None:
        """Take the seat, and add what Celery's worker lacks."""
        super().on_before_init(**kwargs)
        self.aq, self.seat, self._pid = self.app.aq, seat, os.getpid()
        warming = len(self.aq.warmers) * self.aq.settings.worker.warm_timeout
        # Celery kills a child that is not up by then.
        self.app.conf.worker_proc_alive_timeout += warming.total_seconds()
        self.app.steps["consumer"].add(SignsOfLife)
        signals.worker_process_init.connect(self._begin_child, weak=False)

    def on_consumer_ready(self, consumer: Any) -> None:
        """Warm up before Celery says that the worker is ready."""
        if not worker_app.processes():
            self._warm_here()
        self._ready_when_all_are_up(consumer)

    def _ready_when_all_are_up(self, consumer: Any) -> None:
        children: Any = self.pool._pool if worker_app.processes() else None  # noqa: SLF001 -- in private_names
        if children and len(children._all_inqueues) < len(children._pool):  # noqa: SLF001 -- there
            consumer.timer.call_after(_UP_S, self._ready_when_all_are_up, (consumer,))
            return
        self._watch_memory(consumer)
        super().on_consumer_ready(consumer)

    def take_seat(self, seat: Process) -> None:
        """Go over to what *seat* has for a process that runs, children included."""
        self.seat = seat
        move(seat.cores)
        children: Any = self.pool._pool._pool if worker_app.processes() else ()  # noqa: SLF001 -- in private_names
        for child in children:
            with suppress(ProcessLookupError):  # it has ended
                pin(_cores_of(seat, child.index), pid=child.pid)
        self._watch.limit(memory_limit(self._first_pool, seat))

    # -- warming up -------------------------------------------------------------------------------

    def _begin_child(self, **_: object) -> None:
        """Pin a child by its index, which the one in its place has again, and warm it up."""
        if os.getpid() == self._pid:
            return  # solo: Celery takes the worker for its own child
        if self.seat is not None:
            pin(_cores_of(self.seat, current_process().index))
        self._warm(self.aq.warmers)

    def _warm_here(self) -> None:
        if not isinstance(self.pool, thread.TaskPool):
            self._warm(self.aq.warmers)
            return
        coroutines = [one for one in self.aq.warmers if inspect.iscoroutinefunction(one.function)]
        self._warm([one for one in self.aq.warmers if one not in coroutines])
        if coroutines:
            in_each(self.pool.executor, self.pool.limit, lambda: self._warm(coroutines))

    def _warm(self, warmers: Sequence[Warmer]) -> None:
        """Run *warmers*, coroutines on this thread's loop."""
        if warmers:
            threads = Threads(count=len(self.aq.warmers))
            within = self.aq.settings.worker.warm_timeout
            run_coroutine(warm_worker(warmers, threads, within=within, kinds=KINDS))
            threads.stop()

    # -- memory -----------------------------------------------------------------------------------

    def _watch_memory(self, consumer: Any) -> None:
        self._watch = LoadWatch(
            hands=Intake(),
            limit_bytes=memory_limit(self._first_pool, self.seat),
            children=lambda: self.pool.info.get("processes", ()),
            on_room=lambda: None,  # Celery's loop looks by itself
            on_full=self._leave,
            adaptive=False,
        )
        if self._watch.decides:
            consumer.timer.call_repeatedly(LOOK_S, self._watch.round, (0.0, 0.0))

    @property
    def _first_pool(self) -> Pool | None:
        return self.aq.settings.pools.get(next(iter(self.app.amqp.queues.consume_from)))

    def _leave(self) -> None:
        """Drain and go; what still runs after `drain_timeout` is left to be found, as suspects."""
        worker_state.should_stop = NO_MEMORY
        drain = self.aq.settings.worker.drain_timeout.total_seconds()
        end = threading.Timer(drain, os._exit, (NO_MEMORY,))  # Celery itself waits for ever
        end.daemon = True
        end.start()


class Intake:
    """Celery's consumer as `LoadWatch` sees it: what its pool runs, and whether it takes more."""

    def __init__(self) -> None:
        """Take all that the pool has."""
        self._slots = worker_app.slots()

    def __len__(self) -> int:
        """Return how many tasks run."""
        return worker_app.consumption()[0]

    @property
    def slots(self) -> int:
        """Return how many may run."""
        return self._slots

    @slots.setter
    def slots(self, slots: int) -> None:
        self._slots = slots
        worker_app.close_intake(closed=slots == 0)


class SignsOfLife(bootsteps.StartStopStep):  # type: ignore[misc]
    """Tells the supervisor that the worker lives, and leaves a note of what it holds.

    Started by Celery's consumer when it is connected, stopped when it no longer is.
    """

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        """Say nothing yet."""
        super().__init__(consumer, **options)
        self._watchdog = Watchdog()
        self._note = LeaseNote()
        self._timer: Any = None
        self._excused = False
        self._thread: threading.Thread | None = None

    def start(self, consumer: Any) -> None:
        """Begin, or go on after a lost link."""
        aq: AgentQ = consumer.app.aq
        self._keeper = keeper_of(aq.address, Terms.of(aq.settings))
        self._keeper.note_in(self._note)
        if not self._watchdog.every_s:
            return
        every_s = self._watchdog.every_s / 2
        self._excused = isinstance(consumer.pool, solo.TaskPool)
        self._timer = consumer.timer.call_repeatedly(every_s, self._feed)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._stand_in, args=(every_s,), name="agentq-signs", daemon=True
            )
            self._thread.start()

    def stop(self, _: Any) -> None:
        """Let the thread stand in for the loop: the worker connects anew, or ends in order."""
        self._excused = True
        if self._timer is not None:
            self._timer.cancel()

    def _feed(self) -> None:
        self._watchdog.feed(moves=self._keeper.goes_round)

    def _stand_in(self, every_s: float) -> None:
        pause = threading.Event()
        while not pause.wait(every_s):
            if self._excused:
                self._feed()


def _cores_of(seat: Process, index: int) -> tuple[int, ...]:
    """Return where the child of *index* runs, and who takes its place."""
    cores = seat.children or (seat.cores,)
    return cores[index % len(cores)]


def in_each(executor: ThreadPoolExecutor, count: int, function: Callable[[], None]) -> None:
    """Call *function* in each of the *count* threads of *executor*."""
    together = threading.Barrier(count, timeout=10)  # else one thread could take two of them

    def one() -> None:
        together.wait()
        function()

    wait([executor.submit(one) for _ in range(count)])
