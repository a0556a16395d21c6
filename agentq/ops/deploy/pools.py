"""The worker units of this machine beside what they do: systemd's view and the cell's in one."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

from agentq.errors import BrokerUnavailable, PlatformUnsupported, SettingsError
from agentq.host.numa import at_home
from agentq.host.process import usage
from agentq.ops.deploy import systemd
from agentq.ops.deploy.machine import Machine
from agentq.ops.status import Worker, read_status

_SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One worker process."""

    instance: str
    """``shared-3``, of the unit ``agentq-worker@shared-3.service``."""
    pool: str
    state: str
    """As systemd has it, e.g. ``active``; ``active, no lease`` where the cell knows none."""
    pid: int
    cores: tuple[int, ...]
    """Those that it may run on, as the kernel has it."""
    running: int | None
    """Steps; None: it holds no lease."""
    slots: int | None
    cpu_percent: float | None
    """Of one core, with its children, over half a second; None: no process."""
    memory: int | None
    """Bytes: of its cgroup, else resident with its children."""
    restarts: int
    allocator: str
    """What serves malloc there, as it says; "" where it holds no lease."""
    status: str
    remote: float | None = None
    """Share, 0-1, of its memory that is on other nodes than its cores; None: there is one node, or
    it does not show."""


def read_pools(machine: Machine) -> list[Process]:
    """Return each worker process of this machine; takes half a second.

    Raises:
        DeployError: nothing is installed, or systemd does not run here.
    """
    installed = {systemd.worker_unit(one.name) for one in machine.plan().processes}
    units = systemd.show(sorted({*installed, *systemd.loaded_workers()}))
    before = {unit.pid: _cpu_seconds(unit.pid) for unit in units if unit.pid}
    began = time.monotonic()
    workers = _workers(machine)
    time.sleep(max(0.0, _SAMPLE_S - (time.monotonic() - began)))
    took = time.monotonic() - began
    return [_process(unit, workers, before.get(unit.pid), took) for unit in units]


def _process(
    unit: systemd.Unit, workers: dict[int, Worker] | None, before: float | None, took: float
) -> Process:
    worker = (workers or {}).get(unit.pid)
    lacks = unit.active == "active" and workers is not None and worker is None
    now = _cpu_seconds(unit.pid) if unit.pid else None
    known = before is not None and now is not None
    return Process(
        instance=unit.instance,
        pool=unit.instance.rpartition("-")[0],
        state=f"{unit.active}, no lease" if lacks else unit.active,
        pid=unit.pid,
        cores=_cores(unit.pid),
        running=worker.running if worker else None,
        slots=worker.slots if worker else None,
        cpu_percent=max(0.0, (now - before) / took * 100) if known else None,  # type: ignore[operator]
        memory=unit.memory if unit.pid else None,
        restarts=unit.restarts,
        allocator=worker.allocator if worker else "",
        status=unit.status,
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


def _cpu_seconds(pid: int) -> float | None:
    try:
        return usage(pid).cpu_seconds
    except ProcessLookupError:
        return None


def _cores(pid: int) -> tuple[int, ...]:
    try:
        return tuple(sorted(os.sched_getaffinity(pid))) if pid else ()
    except ProcessLookupError:
        return ()


def _remote(pid: int) -> float | None:
    try:
        found = at_home(pid, _cores(pid)) if pid else None
    except (ProcessLookupError, PermissionError, PlatformUnsupported):
        return None
    return found[1].remote_share(found[0]) if found is not None else None
