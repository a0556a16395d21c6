"""The worker units of this machine beside what they do: systemd's view and the cell's in one."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

from agentq.errors import BrokerUnavailable, PlatformUnsupported, SettingsError
from agentq.host.affinity import effective
from agentq.host.numa import at_home
from agentq.host.process import began, descendants, usage
from agentq.ops.deploy import systemd
from agentq.ops.deploy.machine import Machine
from agentq.ops.deploy.systemd import worker_unit
from agentq.ops.status import Worker, read_status

_SAMPLE_S = 0.5
NOT_PLANNED = "not in the plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One worker process."""

    instance: str
    """``shared-3``, of the unit ``agentq-worker@shared-3.service``."""
    pool: str
    state: str
    """As systemd has it, e.g. ``active``; ``active, no lease`` where the cell knows none, ``active,
    not in the plan`` where it has no seat: a scale or its pool is over, and a rollout ends it."""
    pid: int
    cores: tuple[int, ...]
    """Those that it and its children may run on, as the kernel has it."""
    planned: tuple[int, ...]
    """Those that the plan has for it; none: it has no seat there."""
    running: int | None
    """Steps; None: it holds no lease."""
    slots: int | None
    """0: it has not said yet, or takes no more."""
    cpu_percent: float | None
    """Of one core, with its children, over half a second; None: no process."""
    memory: int | None
    """Bytes: of its cgroup, else resident with its children."""
    restarts: int
    allocator: str
    """What serves malloc there, as it says; "" where it holds no lease."""
    status: str
    up_s: float | None = None
    """For how long its process has lived, with the code that it then began with; None: none."""
    build: str = ""
    """agentq's version there and that of its functions, as it says; "" where it holds no lease."""
    remote: float | None = None
    """Share, 0-1, of its memory that is on other nodes than its cores; None: there is one node, or
    it does not show."""


def unwell(found: Iterable[Process]) -> list[str]:
    """Return a line on each of *found* that does not take work, or that the plan does not have."""
    return [
        f"{one.instance}: {one.state}, {one.restarts} restarts"
        + ("; the broker does not answer" if one.state == "active" else "")
        + (f"; its last line: {last}" if (last := _last_line(one)) else "")
        for one in found
        if one.state != "active" or one.running is None
    ]


def read_pools(machine: Machine) -> list[Process]:
    """Return each worker process of this machine; takes half a second.

    Raises:
        DeployError: nothing is installed, or systemd does not run here.
    """
    planned = {worker_unit(one.name): one.all_cores for one in machine.plan().processes}
    units = systemd.show(sorted({*planned, *systemd.loaded_workers()}))
    before = {unit.pid: _cpu_seconds(unit.pid) for unit in units if unit.pid}
    began = time.monotonic()
    workers = _workers(machine)
    time.sleep(max(0.0, _SAMPLE_S - (time.monotonic() - began)))
    took = time.monotonic() - began
    return [
        _process(unit, workers, before.get(unit.pid), took, planned.get(unit.name, ()))
        for unit in units
    ]


def cores_of(pid: int) -> tuple[int, ...]:
    """Return which cores a process and its descendants may run on; none: it is gone."""
    found: set[int] = set()
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError):
            found.update(effective(pid=one))
    return tuple(sorted(found))


def _process(
    unit: systemd.Unit,
    workers: dict[int, Worker] | None,
    before: float | None,
    took: float,
    planned: tuple[int, ...],
) -> Process:
    worker = (workers or {}).get(unit.pid)
    lacks = unit.active == "active" and workers is not None and worker is None
    now = _cpu_seconds(unit.pid) if unit.pid else None
    known = before is not None and now is not None
    return Process(
        instance=unit.instance,
        pool=unit.instance.rpartition("-")[0],
        state=", ".join(
            [unit.active, *(["no lease"] if lacks else []), *([] if planned else [NOT_PLANNED])]
        ),
        pid=unit.pid,
        cores=cores_of(unit.pid) if unit.pid else (),
        planned=planned,
        running=worker.running if worker else None,
        slots=worker.slots if worker else None,
        cpu_percent=max(0.0, (now - before) / took * 100) if known else None,  # type: ignore[operator]
        memory=unit.memory if unit.pid else None,
        restarts=unit.restarts,
        allocator=worker.allocator if worker else "",
        status=unit.status,
        up_s=_lifetime(unit.pid),
        build=worker.build if worker else "",
        remote=_remote(unit.pid),
    )


def _workers(machine: Machine) -> dict[int, Worker] | None:
    """Return process id -> what this host's workers report; None: the cell can not be asked."""
    host = f"@{socket.gethostname()}"
    try:
        found = read_status(machine.store(), brief=True).workers
    except (BrokerUnavailable, SettingsError):
        return None
    return {worker.pid: worker for worker in found if worker.name.endswith(host)}


def _last_line(one: Process) -> str:
    """Return what one that does not run said at its end."""
    return "" if one.state.startswith("active") else systemd.last_line(worker_unit(one.instance))


def _cpu_seconds(pid: int) -> float | None:
    try:
        return usage(pid).cpu_seconds
    except ProcessLookupError:
        return None


def _lifetime(pid: int) -> float | None:
    if not pid or (ticks := began(pid)) is None:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _remote(pid: int) -> float | None:
    try:
        found = at_home(pid, effective(pid=pid)) if pid else None
    except (ProcessLookupError, PermissionError, PlatformUnsupported):
        return None
    return found[1].remote_share(found[0]) if found is not None else None
