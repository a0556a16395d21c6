"""Changes how many processes the pools have: what is added takes work before any is drained."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentq.errors import DeployError
from agentq.ops.deploy import systemd
from agentq.ops.deploy.deployment import plan_at
from agentq.ops.deploy.machine import Machine
from agentq.ops.deploy.reseat import Seats, require_memory, reseat, seats_of

Say = Callable[[str], None]


def scale(machine: Machine, wanted: Mapping[str, int], *, say: Say) -> None:
    """Let the pools named in *wanted* have so many processes; returns when it is so.

    Units are written for the new number, added processes started until they take work, then the
    removed ones told to stop: their running steps may end, the rest is handed back, uncharged.
    Those that stay go over to the cores that the plan has for them now. It lasts until the next
    installation; pools.<name>.processes in the settings is for good. One that was cut off, or
    failed half way, is completed by the same again.

    Raises:
        DeployError: a pool is unknown and nothing of it runs, a process that stays holds more
            memory than is left for it, or one does not start or stop; the others have.
    """
    before = machine.settings()
    running = systemd.running_workers()
    for pool in wanted.keys() - before.pools.keys():
        if wanted[pool] or not systemd.of_pool(running, pool):
            raise DeployError(f"there is no pool {pool!r}; there are: {', '.join(before.pools)}")
    known = {pool: count for pool, count in wanted.items() if pool in before.pools}
    old = seats_of(machine.plan())
    record, given = machine.require(), machine.given()
    plan = plan_at(record.site, given, {**record.processes, **known})
    new = seats_of(plan)
    require_memory(old, new)
    for pool, count in wanted.items():
        say(f"{pool}: {len(systemd.of_pool(running, pool))} -> {count}")
        if pool in known and not count:
            say(f"{pool}: nobody takes its work on this machine then: it waits")
    changes = machine.install(record.site, machine.settings(known), plan, given)
    for name in changes.kept:
        say(f"/{name} was edited and is left as it is")
    # What runs counts, not the last plan: that one may have been cut off on its way.
    named = [name for name, one in new.items() if name not in old or one.pool in wanted]
    added = [name for name in named if name not in running]
    stay = {name: seat for name, seat in new.items() if name not in added}
    of_those = {name for pool in wanted for name in systemd.of_pool(running, pool)}
    left = {*old, *of_those} - new.keys()
    if not left:  # first make room, else first wait for it
        _move(old, stay, say)
    _start(added, say)
    machine.drain(sorted(left), say=say)
    if left:
        _move(old, stay, say)


def _start(names: list[str], say: Say) -> None:
    if not names:
        return
    units = [systemd.worker_unit(name) for name in names]
    try:
        systemd.systemctl("start", *units, within=systemd.START_LIMIT)
    finally:
        for unit in systemd.show(units):
            say(f"{unit.instance}: {unit.status if unit.active == 'active' else unit.active}")


def _move(old: Seats, new: Seats, say: Say) -> None:
    for line in reseat(old, new):
        say(line)
