"""Makes this process a worker: its core, its allocator, its limits, its name, then Celery's worker.

What it says of itself is read back from the kernel and from the loaded libraries, so the line is
what holds and not what was asked for.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from agentq.errors import SettingsError
from agentq.flows.app import AgentQ
from agentq.host.affinity import pin
from agentq.host.allocator import (
    describe,
    keep_background_thread_after_fork,
    launch_environment,
    live,
)
from agentq.host.limits import raise_open_files
from agentq.host.numa import set_policy
from agentq.host.plan import Process, read_plan
from agentq.host.priority import set_nice, set_oom_score, shorten_slice
from agentq.host.supervisor import STOPPING, tell
from agentq.observe import logs
from agentq.ops.plan import plan_of
from agentq.settings import Pool, Settings

logger = logging.getLogger(__name__)

TAKE_SEAT = signal.SIGHUP
"""Has a worker that was started with a plan's file read its seat from there again."""
RELAUNCHED = "_AGENTQ_RELAUNCHED"  # not a setting, hence not AGENTQ_


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What the command line says of one worker process."""

    pools: tuple[str, ...]
    """The pools it works for, the first one names and places it."""
    index: int = 0
    cores: tuple[int, ...] | None = None
    """Logical cores; None for the placement of this pool and index."""
    slots: int | None = None
    name: str | None = None
    plan: Path | None = None
    """Where its seat stands (`agentq plan --json`); None: planned now."""


def become_worker(
    aq: AgentQ, options: WorkerOptions, *, announce: Callable[[str], None] = print
) -> int:
    """Run a worker of *aq* in this process until it is told to stop; return its exit code.

    It may replace this process by the same command under jemalloc first. *announce* gets one line
    when the worker takes work.

    Raises:
        SettingsError: a pool is unknown, or the cores may not be used.
    """
    settings = aq.settings
    pool = _known(options.pools, settings)
    name = options.name or f"{'+'.join(options.pools)}-{options.index}@{socket.gethostname()}"
    _under_its_allocator(pool, settings)  # begins anew, hence before anything is narrowed
    limits = raise_open_files()
    seat = _seat(aq, options)
    pinned = _seated(seat, options, pool)
    logs.configure(settings.log.level, settings.log.format, process=name)
    line = f"{name}: {pinned}; {describe(wanted=pool.allocator)}; {limits}"
    return _run(aq, options, name, seat, lambda: announce(line))


def _known(names: Sequence[str], settings: Settings) -> Pool:
    for name in names:
        if name not in settings.pools:
            raise SettingsError(
                f"pool {name!r} is not in the settings ({', '.join(sorted(settings.pools))}); "
                f"add [pools.{name}] to config/default.toml"
            )
    return settings.pools[names[0]]


def _seat(aq: AgentQ, options: WorkerOptions) -> Process | None:
    """Return what the plan has for this process; None where its pool has fewer of them."""
    cpu_steps = any(step.kind == "cpu" for step in aq.steps.values())
    plan = read_plan(options.plan) if options.plan else plan_of(aq.settings, cpu_steps=cpu_steps)
    seat = plan.seat(options.pools[0], options.index)
    if seat is None or options.cores is None:
        return seat
    turns = len(options.cores)
    children = tuple((options.cores[slot % turns],) for slot in range(len(seat.children)))
    return replace(seat, cores=options.cores, children=children, node=None, reason="--cores")


def _seated(seat: Process | None, options: WorkerOptions, pool: Pool) -> str:
    """Take the seat before memory is touched; return what came of it."""
    if seat is not None:
        said = [f"{pin(seat.cores)} ({seat.reason})"]
        if seat.node is not None:
            set_policy("bind", [seat.node])
            said.append(f"memory of node {seat.node}")
    elif options.cores is not None:
        said = [f"{pin(options.cores)} (--cores)"]
    else:
        said = [f"not pinned (the plan has no {options.pools[0]}-{options.index})"]
    if pool.purpose == "exclusive" and (slice_said := shorten_slice()):
        said.append(slice_said)
    nice = os.getpriority(os.PRIO_PROCESS, 0) if pool.nice is None else pool.nice
    if nice or pool.nice is not None:  # an inherited one is its session's too
        said.append(set_nice(nice))
    if pool.oom_score is not None:
        said.append(set_oom_score(pool.oom_score))
    return "; ".join(said)


def launch_variables(
    pool: Pool, settings: Settings, *, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables to add to *environ* for a worker of *pool* to come to its allocator."""
    kind: Literal["loop", "prefork"] = (
        "prefork" if settings.worker.stock_pool == "prefork" else "loop"
    )
    return launch_environment(pool.allocator, kind=kind, environ=environ)


def _under_its_allocator(pool: Pool, settings: Settings) -> None:
    """Start this very command again with its allocator, which has to be there before Python is."""
    if pool.allocator in {"glibc", live().name} or RELAUNCHED in os.environ:
        return
    added = launch_variables(pool, settings)
    if "LD_PRELOAD" in added:
        os.environ.update(added)
        os.environ[RELAUNCHED] = "1"  # once, whatever comes of it
        # Through -m, since the console script may be a wrapper of any kind.
        os.execv(sys.executable, [sys.executable, "-m", "agentq", *sys.argv[1:]])  # noqa: S606


def _run(
    aq: AgentQ,
    options: WorkerOptions,
    name: str,
    seat: Process | None,
    ready: Callable[[], None],
) -> int:
    from celery import signals  # noqa: PLC0415 -- after the exec, not twice

    keep_background_thread_after_fork()

    def on_ready(**_: object) -> None:
        if options.plan is not None:
            signal.signal(TAKE_SEAT, lambda *_: _take_seat(aq, worker, options))
        ready()

    def keep_logging(**_: object) -> None:
        """Keep Celery's hands off the loggers: a receiver is how it is told."""

    def on_stopping(**_: object) -> None:
        tell(STOPPING, "STATUS=draining: running steps may end, the rest is handed back")

    faulthandler.enable()  # SIGABRT of a watchdog, or a crash, prints where each thread stood
    signals.worker_ready.connect(on_ready)
    signals.worker_shutting_down.connect(on_stopping)
    signals.setup_logging.connect(keep_logging)
    # Celery warns of root because a worker that unpickles can be made to run anything: none of ours
    # does (`accept_content`).
    warnings.filterwarnings("ignore", "You're running the worker with superuser privileges")
    worker = aq.celery.Worker(
        hostname=name,
        queues=list(options.pools),
        concurrency=options.slots or _slots(aq.settings, seat, options.pools[0]),
        loglevel=aq.settings.log.level,
        task_events=aq.settings.worker.events,
        quiet=True,
        seat=seat,
    )
    worker.start()
    return int(worker.exitcode or 0)


def _take_seat(aq: AgentQ, worker: Any, options: WorkerOptions) -> None:
    """Read the plan again and go over to what it has now for this process."""
    try:
        seat = _seat(aq, options)
    except SettingsError as error:
        logger.error("%s; the seat stays as it is", error)  # noqa: TRY400 -- it says it all
        return
    if seat is not None:
        worker.take_seat(seat)


def _slots(settings: Settings, seat: Process | None, pool: str) -> int | None:
    """Return the slots of the seat: of Celery's prefork its processes, of its other pools none."""
    own = settings.pools[pool].slots
    if seat is None or own is not None:
        return own
    match settings.worker.stock_pool:
        case None:
            return seat.slots
        case "prefork":
            return len(seat.children)
        case "threads" | "solo":
            return None
