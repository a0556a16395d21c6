"""Makes this process a worker: its core, its allocator, its limits, its name, then Celery's worker.

What it says of itself is read back from the kernel and from the loaded libraries, so the line is
what holds and not what was asked for.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentq.errors import SettingsError
from agentq.flows.app import AgentQ
from agentq.host.affinity import pin
from agentq.host.allocator import describe, launch_environment, live
from agentq.host.limits import raise_open_files
from agentq.host.placement import Placement, place
from agentq.host.placement import Pool as PlacedPool
from agentq.host.topology import read_topology
from agentq.observe import logs
from agentq.settings import Pool, Settings

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


def placements(settings: Settings) -> dict[tuple[str, int], Placement]:
    """Return where each process of each pool runs on this machine."""
    pools = [
        PlacedPool(name=name, purpose=pool.purpose, processes=pool.processes, cpus=pool.cpus)
        for name, pool in settings.pools.items()
    ]
    return place(read_topology(), pools)


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
    limits = raise_open_files()
    pinned, why = _pinned(options, settings)
    _under_its_allocator(pool)
    logs.configure(settings.log.level, settings.log.format, process=name)
    line = f"{name}: {pinned}{why}; {describe()}; {limits}"
    return _run(aq, options, name, pool, lambda: announce(line))


def _known(names: Sequence[str], settings: Settings) -> Pool:
    for name in names:
        if name not in settings.pools:
            raise SettingsError(
                f"pool {name!r} is not in the settings ({', '.join(sorted(settings.pools))}); "
                f"add [pools.{name}] to config/default.toml"
            )
    return settings.pools[names[0]]


def _pinned(options: WorkerOptions, settings: Settings) -> tuple[str, str]:
    if options.cores is not None:
        return str(pin(options.cores)), ""
    placement = placements(settings).get((options.pools[0], options.index))
    if placement is None:
        processes = settings.pools[options.pools[0]].processes
        return "not pinned", f" (pools.{options.pools[0]}.processes is {processes})"
    return str(pin(placement.cores)), f" ({placement.reason})"


def _under_its_allocator(pool: Pool) -> None:
    """Start this very command again with jemalloc, which has to be there before Python is."""
    if pool.allocator != "jemalloc" or live().name == "jemalloc" or RELAUNCHED in os.environ:
        return
    added = launch_environment("jemalloc")
    if "LD_PRELOAD" in added:
        os.environ.update(added)
        os.environ[RELAUNCHED] = "1"  # once, whatever comes of it
        # Through -m, since the console script may be a wrapper of any kind.
        os.execv(sys.executable, [sys.executable, "-m", "agentq", *sys.argv[1:]])  # noqa: S606


def _run(
    aq: AgentQ, options: WorkerOptions, name: str, pool: Pool, ready: Callable[[], None]
) -> int:
    from celery import signals  # noqa: PLC0415 -- after the exec, not twice

    def on_ready(**_: object) -> None:
        ready()

    def keep_logging(**_: object) -> None:
        """Keep Celery's hands off the loggers: a receiver is how it is told."""

    signals.worker_ready.connect(on_ready)
    signals.setup_logging.connect(keep_logging)
    # Celery warns of root because a worker that unpickles can be made to run anything: none of ours
    # does (`accept_content`).
    warnings.filterwarnings("ignore", "You're running the worker with superuser privileges")
    worker = aq.celery.Worker(
        hostname=name,
        queues=list(options.pools),
        concurrency=options.slots or pool.slots,
        loglevel=aq.settings.log.level,
        task_events=aq.settings.worker.events,
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)
