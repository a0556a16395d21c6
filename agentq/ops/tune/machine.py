"""A tuning of this machine: which parameters it has, and which it lacks and why."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from agentq.broker.build import build
from agentq.errors import SettingsError
from agentq.host.preload import find_library, how_to_install
from agentq.host.topology import allowed_cores
from agentq.ops.plan import plan_of
from agentq.ops.tune.climb import Tuning, tune
from agentq.ops.tune.parameters import kernel_parameters, parameters
from agentq.ops.tune.record import Record
from agentq.ops.tune.sysctls import NAMES, Sysctls
from agentq.ops.tune.trial import trying
from agentq.settings import Settings

_PREFETCH = (
    "prefetch: not tried, our workers have none: a fetch asks for the free slots and no more "
    "(worker.prefetch is for stock_pool)"
)
_SYSCTLS = (
    "sysctls: over loopback with a few dozen connections. What they are for (a fleet that connects "
    "at once, calls without keep-alive, a fast network) does not show here: no reason to unset one"
)


def tune_machine(  # noqa: PLR0913 -- what the command line has
    settings: Settings,
    *,
    file: Path,
    skip: Sequence[str],
    rounds: int,
    limit: timedelta,
    chains: int,
    program: Path | None,
    say: Callable[[str], None],
) -> Tuning:
    """Try every parameter that this machine has.

    Args:
        settings: the reference.
        file: what has been measured; where it is there it goes on.
        skip: settings that are not moved.
        rounds: trials of each of two values.
        limit: no setting is begun after it.
        chains: runs of one trial.
        program: the server; None: the embedded one.
        say: gets a line for each trial.

    Raises:
        SettingsError: there is nothing of such a name to skip.
        AgentQError: a trial failed, or *file* is of another machine, build or settings.
    """
    allocators = ["glibc", *(name for name in ("jemalloc", "tcmalloc") if find_library(name))]
    with Sysctls() as sysctls:
        if sysctls.said:
            say(sysctls.said)
        moved = [
            *parameters(
                settings,
                cores=len(allowed_cores()),
                slots=_planned_slots(settings),
                allocators=allocators,
            ),
            *kernel_parameters(sysctls.found, sysctls.holding),
        ]
        _refuse_unknown(skip, [one.key for one in moved])
        found = tune(
            parameters=[one for one in moved if one.key not in skip],
            settings=settings,
            run=trying(chains=chains, program=program),
            record=Record(path=file, made_with=made_with(settings, rounds=rounds, chains=chains)),
            rounds=rounds,
            limit=limit,
            say=say,
        )
    notes = [*_notes(settings, allocators), *sysctls.left_out]
    if any(one.key in sysctls.found for one in found.comparisons):
        notes.append(_SYSCTLS)
    return replace(found, notes=tuple(notes))


def _refuse_unknown(skip: Sequence[str], known: Sequence[str]) -> None:
    for key in skip:
        # The kernel's may be named where they could not be tried either.
        if key not in known and key not in NAMES:
            raise SettingsError(f"--skip {key}: nothing of that name is tried ({', '.join(known)})")


def made_with(settings: Settings, *, rounds: int, chains: int) -> str:
    """Return what tells settings, machine and build of a tuning from all others."""
    text = f"{settings.model_dump_json()} {len(os.sched_getaffinity(0))} {rounds} {chains}"
    return f"{build()}, {platform.node()}, {sha256(text.encode()).hexdigest()[:12]}"


def _planned_slots(settings: Settings) -> int:
    """Return what a shared process runs at once; under Celery's own pools that is less."""
    stock = settings.worker.stock_pool
    if stock == "threads":
        return os.cpu_count() or 1  # Celery's own choice
    for process in plan_of(settings, cpu_steps=False).processes:
        if process.pool == "shared":
            return len(process.children) if stock == "prefork" else process.slots
    return settings.worker.slots


def _notes(settings: Settings, allocators: list[str]) -> Iterator[str]:
    if settings.worker.stock_pool is None:
        yield _PREFETCH
    wanted = settings.pools["shared"].allocator
    if wanted != "glibc" and wanted not in allocators:
        yield f"pools.shared.allocator: not tried, {wanted} is not here: {how_to_install(wanted)}"
