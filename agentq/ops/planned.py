"""How many worker processes each pool is to have, beside how many it has."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentq.errors import SettingsError
from agentq.host.plan import read_plan
from agentq.ops.deploy.render import PLAN
from agentq.ops.status import Worker
from agentq.settings import Settings

_INSTALLED = Path("/") / PLAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One pool."""

    pool: str
    planned: int
    up: int
    """Workers that hold a lease."""


def planned_here(
    settings: Settings, workers: Iterable[Worker], *, installed: Path = _INSTALLED
) -> tuple[Planned, ...]:
    """Return what is planned and what is up.

    Where units are installed, both of this machine; else what the settings say, beside the workers
    of the whole cell.
    """
    held = {one.name: one for one in workers if one.lease_ms > 0}.values()
    try:
        planned = Counter(process.pool for process in read_plan(installed).processes)
        held_here = [one for one in held if one.host == os.uname().nodename]
    except SettingsError:  # there is none, or one of another version
        planned = Counter({name: pool.processes for name, pool in settings.pools.items()})
        held_here = list(held)
    up = Counter(pool for one in held_here for pool in one.pools)
    return tuple(
        Planned(pool=pool, planned=count, up=up[pool]) for pool, count in sorted(planned.items())
    )
