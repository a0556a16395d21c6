"""Has processes that run take the seats that a new plan has for them: cores and memory, at once.

systemd applies a unit's new memory limit as soon as it has read it; cores it gives only to what it
starts. So the worker is told to read the plan again: it pins its threads and its children,
those that it starts later too, and judges its memory by the new limit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from agentq.errors import DeployError, SettingsError
from agentq.host.affinity import effective
from agentq.host.plan import Plan, Process
from agentq.host.process import usage
from agentq.host.topology import format_cores
from agentq.ops.deploy import systemd
from agentq.ops.deploy.deployment import Given, Site
from agentq.ops.deploy.install import Changes
from agentq.ops.deploy.machine import Machine
from agentq.ops.deploy.pools import cores_of
from agentq.ops.worker_process import TAKE_SEAT
from agentq.settings import Settings
from agentq.worker.policy import CLOSE_AT

Seats = Mapping[str, Process]
"""By name of the process."""
_WITHIN_S = 5.0
_LOOK_S = 0.05


def seats_of(plan: Plan) -> Seats:
    """Return its processes by name."""
    return {one.name: one for one in plan.processes}


def install_seated(
    machine: Machine, site: Site, settings: Settings, plan: Plan, given: Given
) -> Changes:
    """Install as `Machine.install` does, and have what runs take its new seats.

    Raises:
        DeployError: as there; a process that runs holds more memory than it would be left.
    """
    old: Seats = {}
    if machine.record is not None:
        with contextlib.suppress(SettingsError):  # another version's plan, or a damaged one
            old = seats_of(machine.plan())
    require_memory(old, seats_of(plan))
    changes = machine.install(site, settings, plan, given)
    changes.notes.extend(reseat(old, seats_of(plan)))
    return changes


def require_memory(old: Seats, new: Seats) -> None:
    """Refuse seats in which a process that runs would be ended for what it holds already.

    Raises:
        DeployError: one holds more than its new limit lets it take work with.
    """
    fewer = [
        name
        for name, seat in new.items()
        if name in old and seat.memory_bytes < old[name].memory_bytes
    ]
    for unit in _running(fewer):
        held, limit = usage(unit.pid).rss_bytes, new[unit.instance].memory_bytes
        if held > CLOSE_AT * limit:
            raise DeployError(
                f"{unit.instance} holds {held >> 20} MB and could hold {limit >> 20} MB: the "
                f"kernel would end it. Fewer processes, or pools.{new[unit.instance].pool}.memory "
                "set; nothing was changed"
            )


def reseat(old: Seats, new: Seats) -> list[str]:
    """Move what runs to its *new* seat; return what is to be said of it.

    *old*: the plan before, which need not be where they are: who moved them may have been cut off.
    """
    units = [
        unit
        for unit in _running(list(new))
        if old.get(unit.instance) != new[unit.instance] or not _sits(unit, new)
    ]
    if not units:
        return []
    before = {unit.instance: cores_of(unit.pid) for unit in units}
    names = [unit.name for unit in units]
    systemd.systemctl("kill", "--kill-who=main", f"--signal={TAKE_SEAT.name}", *names)
    until = time.monotonic() + _WITHIN_S
    while (left := [one for one in units if not _sits(one, new)]) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    said = []
    for unit in units:
        name, seat = unit.instance, new[unit.instance]
        if unit in left:
            said.append(_stays(unit, seat))
        elif (now := cores_of(unit.pid)) != before[name]:
            was = format_cores(before[name])
            said.append(f"{name}: now on cores {format_cores(now)}, was on {was}")
        said += [*_limit(old.get(name, seat), seat), *_later(old.get(name, seat), seat)]
    return said


def _running(names: list[str]) -> list[systemd.Unit]:
    units = systemd.show([systemd.worker_unit(name) for name in names])
    return [unit for unit in units if unit.active == "active" and unit.pid]


def _sits(unit: systemd.Unit, new: Seats) -> bool:
    seat = new[unit.instance]
    try:
        return effective(pid=unit.pid) == seat.cores and set(cores_of(unit.pid)) <= set(
            seat.all_cores
        )
    except ProcessLookupError:  # it has ended: whoever comes takes the new one
        return True


def _stays(unit: systemd.Unit, new: Process) -> str:
    return (
        f"{new.name}: stays on cores {format_cores(cores_of(unit.pid))}, did not answer; on "
        f"{format_cores(new.all_cores)} from its next start on: agentq rollout {new.pool}"
    )


def _limit(old: Process, new: Process) -> list[str]:
    """Return a line on the limit that systemd changes while it runs; none where it stays."""
    was, is_ = old.memory_bytes >> 20, new.memory_bytes >> 20
    return [f"{new.name}: memory limit {was} MB -> {is_} MB, from now on"] if was != is_ else []


def _later(old: Process, new: Process) -> list[str]:
    """Return a line on what only a start changes; none where that is nothing."""
    pairs = {
        "memory node": (old.node, new.node),
        "slots": (old.slots, new.slots),
        "threads": (old.threads, new.threads),
        "processes for cpu steps": (len(old.children), len(new.children)),
    }
    differ = [f"{what} {was} -> {is_}" for what, (was, is_) in pairs.items() if was != is_]
    if not differ:
        return []
    return [f"{new.name}: from its next start on, {', '.join(differ)}: agentq rollout {new.pool}"]
