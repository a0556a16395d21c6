"""Steps whose process died or hung while they ran: each runs alone, in a child of the worker.

One of them may have been the cause, and nothing tells which. So none is charged; alone, the guilty
one ends nobody but itself, and only that counts against it (`broker.delivery_limit`). The others
end as they would have::

    suspect --> waits (few; the rest is handed back) --> alone --> its own ending
                                                          |
                                                          +--> DiedAlone   died, or hung: charged
                                                          +--> NotBegun    no child: not charged

A suspect takes no slot: up to `worker.suspects` children run beside what the loop runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import pickle
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.worker import state as worker_state

from agentq.errors import BrokerUnavailable, WorkerLost
from agentq.host.limits import fullest
from agentq.worker import alone

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from agentq.flows.app import AgentQ
    from agentq.store.calls import Call
    from agentq.timing.deadline import BrokerClock
    from agentq.worker.delivery import Delivery
    from agentq.worker.sidecar import TaskEvents

logger = logging.getLogger(__name__)

START_S = 60.0
"""How long a child may take until its step begins: the first one waits for the app's import."""

_HELD = 4
"""Suspects that a worker holds for each that it can run at a time."""

_BEATS = 8
"""How many beats a child misses before it counts as hung."""

_STRIKES = 2
"""Silent waits that mean a hang: one may be the worker's own standstill."""


class DiedAlone(WorkerLost):
    """The step's process died, or hung, while nothing else ran in it."""


class NotBegun(WorkerLost):
    """The step's process could not be started or ended before the step began."""


class Suspects:
    """One per worker process; starts nothing before the first suspect."""

    def __init__(self, *, app: AgentQ, hostname: str, clock: BrokerClock) -> None:
        """Keep the parts."""
        settings = app.settings.worker
        self._app = app
        self._hostname = hostname
        self._clock = clock
        self._place = place_of(app)
        self.at_once = settings.suspects if self._place is not None else 0
        """How many run at a time; 0: none can, since a child could not find the app."""
        # What a loop may stand still before its worker loses what it holds.
        self._hang_s = (settings.hang_timeout + settings.lease).total_seconds()
        self._free = asyncio.Semaphore(self.at_once)
        self._context = multiprocessing.get_context("forkserver")
        # One thread: `multiprocessing` is not made for several that start processes.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="agentq-suspects")
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def most(self) -> int:
        """Return how many may be held, those that wait for a child included.

        Enough that quick ones do not wait for the cell, few enough that other workers get some.
        """
        return _HELD * self.at_once

    def preload(self) -> None:
        """Say what the fork server imports: before it is started, by whomever."""
        if self._place is None:
            logger.warning(
                "no module has this app as an attribute: its steps can not be run alone, and each "
                "that runs when this process dies is charged for it"
            )
            return
        modules = sorted({"__main__", "agentq.worker.alone", self._place[0], *self._modules()})
        multiprocessing.set_forkserver_preload(modules)

    async def run(self, delivery: Delivery, entry: list[Any], *, events: TaskEvents) -> list[Call]:
        """Run a suspect; return the calls that end it.

        Raises:
            DiedAlone: it died, or its loop stood still for `hang_timeout` and a lease.
            NotBegun: there was no process for it; it has not run.
            BrokerUnavailable: no answer in time.
            asyncio.CancelledError: it was cancelled, and its process is ended.
        """
        await self._free.acquire()
        child: _Child | None = None
        try:
            child = await self._start(self._job(delivery, entry, events=events))
            return await self._heard(child, events)
        finally:
            if child is None:
                self._free.release()
            else:
                ending = asyncio.create_task(self._end(child), name="agentq-suspect-ends")
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)

    async def stop(self) -> None:
        """End what is left; safe twice."""
        if self._endings:
            await asyncio.wait(self._endings)
        self._starter.shutdown(wait=False)

    def _modules(self) -> list[str]:
        """Return where the app's tasks are declared."""
        found = {task.__module__ for task in self._app.celery.tasks.values()}
        found = {name for name in found if name and name.partition(".")[0] != "celery"}
        return sorted(_in_child(name) for name in found)

    def _job(self, delivery: Delivery, entry: list[Any], *, events: TaskEvents) -> alone.Job:
        assert self._place is not None  # noqa: S101 -- without it nothing is a suspect here
        return alone.Job(
            module=self._place[0],
            attribute=self._place[1],
            modules=tuple(self._modules()),
            folder=str(Path.cwd()),
            pool=delivery.pool,
            entry=entry,
            hostname=self._hostname,
            clock=self._clock,
            events=events.enabled,
            revoked=delivery.id in worker_state.revoked,
            level=logging.getLogger().level,
            beat_s=min(1.0, self._hang_s / _BEATS),
        )

    async def _start(self, job: alone.Job) -> _Child:
        loop = asyncio.get_running_loop()
        try:
            starting = loop.run_in_executor(self._starter, _started, self._context, job)
            process, link = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_discard)
            raise
        except (OSError, EOFError, RuntimeError) as error:  # no file, no fork, no thread
            raise NotBegun(f"no process for it: {fullest(error)}") from error
        try:
            reader, writer = await asyncio.open_unix_connection(sock=link)
        except BaseException:
            process.kill()
            raise
        return _Child(process, reader, writer)

    async def _heard(self, child: _Child, events: TaskEvents) -> list[Call]:
        """Listen to a child until it has said how its step ended."""
        begun = False
        while True:
            try:
                kind, payload = await child.frame(within=self._hang_s if begun else START_S)
            except TimeoutError as error:
                child.process.kill()
                what = (
                    f"its loop stood still for {self._hang_s:.1f} s" if begun else "it never began"
                )
                raise (DiedAlone if begun else NotBegun)(what) from error
            except (asyncio.IncompleteReadError, OSError) as error:
                how = await self._how(child)
                raise (DiedAlone if begun else NotBegun)(how) from error
            match kind:
                case alone.BEGUN:
                    begun = True
                case alone.ENDED:
                    child.has_ended = True
                    ending, said, counted = pickle.loads(payload)  # noqa: S301 -- our own child's
                    events.queue.extend(said)
                    events.outcomes.add(counted)
                    return list(ending)
                case alone.AWAY:
                    child.has_ended = True
                    raise BrokerUnavailable(payload.decode())
                case alone.BROKEN:
                    text = f"in its own process: {payload.decode(errors='replace')}"
                    raise RuntimeError(text) if begun else NotBegun(text)
                case _:  # alone.BEAT
                    pass

    async def _how(self, child: _Child) -> str:
        """Return how a child ended whose end of the socket is closed."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._starter, child.process.join, 1)
        code = child.process.exitcode
        if code is not None and code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with status {code}"

    async def _end(self, child: _Child) -> None:
        """Let a child close what it opened, or end it; its place is free after that."""
        try:
            await child.end()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._starter, child.process.join)
            child.process.close()
        finally:
            self._free.release()


class _Child:
    """A process and what it says."""

    def __init__(
        self,
        process: ForkServerProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Keep the parts."""
        self.process = process
        self.has_ended = False
        """Whether it said how its step ended: then it may close in peace."""
        self._reader = reader
        self._writer = writer
        self._head: bytes | None = None

    async def frame(self, *, within: float) -> tuple[bytes, bytes]:
        """Return the next thing it says.

        Raises:
            TimeoutError: it was silent for so many seconds in which this process was awake.
            asyncio.IncompleteReadError: it has ended.
        """
        for strike in range(1, _STRIKES + 1):
            try:
                async with asyncio.timeout(within / _STRIKES):
                    return await self._read()
            except TimeoutError:
                if strike == _STRIKES:
                    raise
        raise AssertionError

    async def _read(self) -> tuple[bytes, bytes]:
        # Begun again after a time-out: the head is kept, and `readexactly` takes all or nothing.
        if self._head is None:
            self._head = await self._reader.readexactly(alone.FRAME.size)
        kind, size = alone.FRAME.unpack(self._head)
        payload = await self._reader.readexactly(size)
        self._head = None
        return kind, payload

    async def end(self) -> None:
        """Wait a little for one that has ended its step, kill any other."""
        if self.has_ended:
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(alone.CLOSE_S + 1):
                    await self._reader.read()
        self.process.kill()
        self._writer.close()


def place_of(app: AgentQ) -> tuple[str, str] | None:
    """Return module and attribute by which another process finds *app*; None: there are none."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("celery", "agentq"):
            continue  # Celery's "current app" is another one in another process
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app or value is app.celery:
                return _in_child(name), attribute
    return None


def _in_child(module: str) -> str:
    """Return what a module is called in a child, where `__main__` is multiprocessing's."""
    return "__mp_main__" if module == "__main__" else module


def _started(context: Any, job: alone.Job) -> tuple[ForkServerProcess, socket.socket]:
    """Start a child; return it and our end of the socket it talks over."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = context.Process(target=alone.main, args=(job, theirs), name="agentq-suspect")
            process.start()
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)  # noqa: FBT003 -- the socket's signature
    return process, ours


def _discard(starting: asyncio.Future[Any]) -> None:
    """End a child that was cancelled while it was being started."""
    if starting.exception() is None:
        process, link = starting.result()
        link.close()
        process.kill()
