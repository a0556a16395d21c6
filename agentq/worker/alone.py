"""A suspect's own process: one step runs in it and ends, or takes nobody along.

What it says to the worker, as frames of kind and length over a socket::

    BEGUN    the step's code comes next: from here on a death counts against it
    BEAT     the loop moves
    ENDED    calls that end the delivery, events, outcome: pickled, by a process' own child
    AWAY     the broker did not answer; the text
    BROKEN   an error of ours; the traceback

The process is forked from multiprocessing's fork server, which has imported the app, so it costs
about 30 ms of CPU and 10 MB. It runs the same tracer as the worker does, on a loop of its own; the
worker sends what comes out under its own lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.worker import state as worker_state

from agentq.clock import milliseconds
from agentq.errors import BlobsUnavailable, BrokerUnavailable
from agentq.host.parent import begin_child
from agentq.observe import logs
from agentq.store.client import AsyncStore
from agentq.store.multiplexer import Multiplexer
from agentq.timing.deadline import BrokerClock
from agentq.worker.delivery import Delivery, judge
from agentq.worker.joined import JoinReader
from agentq.worker.parts import Parts
from agentq.worker.requests import separate_stacks
from agentq.worker.sidecar import TaskEvents
from agentq.worker.threads import Threads
from agentq.worker.tracer import Tracer

if TYPE_CHECKING:
    from socket import socket

    from agentq.flows.app import AgentQ

BEGUN, BEAT, ENDED, AWAY, BROKEN = b"g", b"b", b"e", b"a", b"x"
FRAME = struct.Struct(">cI")

CLOSE_S = 2.0
"""How long a child takes at most to close what its step opened."""

_OOM_SCORE = "500"


@dataclass(frozen=True, slots=True)
class Job:
    """What a child is told: everything in it can be pickled."""

    module: str
    attribute: str
    """Where the app is."""
    modules: tuple[str, ...]
    """Where its tasks are declared."""
    folder: str
    """The worker's current one."""
    pool: str
    entry: list[Any]
    """As `fetch` returned it."""
    hostname: str
    clock: BrokerClock
    """The worker's: the machine's processes share the monotonic clock it goes on with."""
    events: bool
    revoked: bool
    level: int
    beat_s: float


class Here:
    """Stands in for the processes of kind="cpu" steps: this is one already."""

    def __init__(self, threads: Threads) -> None:
        """Take where to run them, so that the loop goes on."""
        self._threads = threads

    async def run(self, task: Any, arguments: list[Any], *, begins: Callable[[], None]) -> Any:
        """Run a step's function."""
        return await self._threads.run(task.step.function, *arguments, begins=begins)


def main(job: Job, link: socket) -> None:
    """Run one suspect; the target of its process."""
    begin_child(job.folder)
    _be_the_first_victim()
    # Whether to stop is the worker's decision: a signal to the whole group must not look like a
    # death of the step.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with asyncio.Runner() as runner:
        runner.run(_Child(job, link).run())
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)  # a thread that its step left behind would hold up an ordinary exit


def _be_the_first_victim() -> None:
    """Let a machine that runs out of memory end the suspect rather than its worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


class _Child:
    """The life of one child."""

    def __init__(self, job: Job, link: socket) -> None:
        """Keep the parts."""
        self._job = job
        self._link = link

    async def run(self) -> None:
        """Run the suspect and say how it ended."""
        beating = asyncio.create_task(self._beat(), name="agentq-beat")
        try:
            aq = self._load()
            await self._trace(aq)
        except (BlobsUnavailable, BrokerUnavailable) as error:
            self._send(AWAY, str(error).encode())
        except Exception:  # noqa: BLE001 -- said to the worker, which logs it
            self._send(BROKEN, traceback.format_exc().encode())
        else:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S):
                    await aq.close_services()
        beating.cancel()

    async def _trace(self, aq: AgentQ) -> None:
        job = self._job
        threads, events = Threads(count=1), TaskEvents(enabled=job.events)
        cell = Multiplexer(AsyncStore(address=aq.address, timeout=aq.settings.broker.timeout))
        parts = Parts(
            app=aq,
            hostname=job.hostname,
            cell=cell,
            clock=job.clock,
            threads=threads,
            processes=Here(threads),
            joins=JoinReader(app=aq, cell=cell),
            events=events,
        )
        delivery = judge(
            job.entry,
            pool=job.pool,
            tasks=aq.celery.tasks,
            flows=aq.flows,
            keep_ms=milliseconds(aq.settings.runs.keep),
            max_payload=aq.settings.broker.max_payload,
        )
        if not isinstance(delivery, Delivery):
            raise TypeError(f"the worker can run this and its child can not: {delivery!r}")
        if job.revoked:
            worker_state.revoked.add(delivery.id)
        tracer = Tracer(parts)
        self._send(BEGUN)
        ending = await tracer.run(delivery)
        said = (ending, list(events.queue), events.outcomes.taken())
        self._send(ENDED, pickle.dumps(said))

    def _load(self) -> AgentQ:
        """Import the app and do to it what Celery does in a prefork child."""
        job = self._job
        for name in job.modules:
            import_module(name)
        found: Any = getattr(import_module(job.module), job.attribute)
        aq: AgentQ = getattr(found, "aq", found)
        celery = aq.celery
        if signals.setup_logging.receivers:
            celery.log.setup_logging_subsystem(loglevel=job.level)
        else:
            level = logging.getLevelName(job.level)
            logs.configure(level, aq.settings.log.format, process=f"{job.hostname} suspect")
        celery.set_current()
        celery.set_default()
        celery.loader.init_worker()
        celery.loader.init_worker_process()
        celery.finalize()
        separate_stacks(celery)
        signals.worker_process_init.send(sender=None)
        return aq

    async def _beat(self) -> None:
        while True:
            self._send(BEAT)
            await asyncio.sleep(self._job.beat_s)

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        try:
            self._link.sendall(FRAME.pack(kind, len(payload)) + payload)
        except OSError:
            os._exit(1)  # the worker has let go of this suspect: what it did is nobody's any more
