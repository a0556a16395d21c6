"""Restarts the worker processes one after the other, each only while the one before is well."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from agentq.clock import format_duration
from agentq.errors import BrokerUnavailable, DeployError
from agentq.host.plan import Process
from agentq.ops.deploy import systemd
from agentq.ops.deploy.deployment import with_code
from agentq.ops.deploy.machine import ROOT, Machine
from agentq.ops.deploy.render import OPTIONAL, STOP_SLACK
from agentq.ops.status import read_status
from agentq.store.client import Store

Say = Callable[[str], None]

_LOOK_S = 0.25
_SETTLED = timedelta(seconds=2)
"""What ends so soon after it took work was not well."""
_HEALTHY_WITHIN = timedelta(seconds=30)


def rollout(machine: Machine, pools: tuple[str, ...], *, say: Say) -> None:
    """Restart each process of *pools* (none named: of all), one at a time, the shared pools first.

    A process drains, starts, takes work, and holds its lease for `_SETTLED` before the next one.
    Those that run and that the plan has no seat for, since a scale is over or their pool is gone,
    drain and end once the others are well: they would go on with the code they began with. With all
    pools, dashboard and metrics are started again too.

    Raises:
        DeployError: the app can not be imported, or the broker does not take the units' login, and
            nothing was restarted; or the first that is not well: those behind it run on as they
            were.
    """
    settings = machine.settings()
    running = systemd.running_workers()
    for pool in set(pools) - settings.pools.keys():
        if not systemd.of_pool(running, pool):
            raise DeployError(f"there is no pool {pool!r}; there are: {', '.join(settings.pools)}")
    seated = machine.plan().processes
    chosen = [one for one in seated if not pools or one.pool in pools]
    # A fault of the new build shows first where nobody waits for headroom.
    chosen.sort(key=lambda process: settings.pools[process.pool].purpose == "exclusive")
    leaving = sorted(running - {one.name for one in seated})
    if pools:
        leaving = [name for pool in pools for name in systemd.of_pool(leaving, pool)]
    store = machine.store()
    _require_ready(machine, store, say)
    limit = settings.worker.drain_timeout
    for done, process in enumerate(chosen):
        behind = [one.name for one in chosen[done + 1 :]] + leaving
        left = ", ".join(behind) or "none"
        try:
            _restart(store, process, limit, left, say)
        except DeployError as error:
            so_far = f"rolled out: {done} of {len(chosen)}, left as they were: {left}"
            raise _stopped(error, process, seated, so_far) from error
    if leaving:
        say(f"{', '.join(leaving)}: not in the plan of this machine (any more)")
        machine.drain(leaving, say=say)
    looking = [] if pools else [one.name for one in systemd.show(OPTIONAL) if one.pid]
    if looking:  # for which nobody waits
        systemd.systemctl("restart", "--no-block", *looking)
        say(f"{', '.join(looking)}: told to start again")


def _require_ready(machine: Machine, store: Store, say: Say) -> None:
    """Try what each worker would meet at its start, while all of the old ones still run.

    Raises:
        DeployError: one would fail.
    """
    site, given = machine.require().site, machine.given()
    try:
        store.ensure_functions()
        code = with_code(site, given, as_user=machine.root == ROOT).code
    except (DeployError, BrokerUnavailable) as error:
        raise DeployError(f"nothing was restarted: {error}") from error
    if code != given.code:
        say(f"the code of {site.app} sets other values than when this was installed, which the "
            "units do not know: agentq deploy install")  # fmt: skip


def _restart(store: Store, process: Process, drain: timedelta, left: str, say: Say) -> None:
    """Restart one and return once it is well.

    Raises:
        DeployError: it is not; has what it said last.
    """
    unit = systemd.worker_unit(process.name)
    [before] = systemd.show([unit])
    how = (
        f"draining, for at most {format_duration(drain)}, then started again"
        if before.pid
        else f"{before.active}, nothing to drain: started"
    )
    say(f"{process.name}: {how}")
    began, since = time.monotonic(), time.time()
    try:
        systemd.systemctl("restart", unit, within=drain + STOP_SLACK + systemd.START_LIMIT)
        _await_healthy(store, process.name)
    except DeployError as error:
        why, _, _ = str(error).partition("\n")  # systemd's second line is about its journal
        said = systemd.last_line(unit, since=since)
        raise DeployError(why.rstrip(".") + (f"; its last line: {said}" if said else "")) from error
    except KeyboardInterrupt:
        say(f"{process.name}: systemd goes on with its restart; left as they were: {left}")
        raise
    say(f"{process.name}: restarted and well after {time.monotonic() - began:.1f} s")


def _stopped(
    error: DeployError, process: Process, seated: Sequence[Process], so_far: str
) -> DeployError:
    """Return what to say where *process* is not well: what is left of its pool, and the way out."""
    pool = [systemd.worker_unit(one.name) for one in seated if one.pool == process.pool]
    unit = systemd.worker_unit(process.name)
    up = sum(one.active == "active" and one.name != unit for one in systemd.show(pool))
    return DeployError(
        f"{process.name} is not well after its restart: {error}; {so_far}; see journalctl -u {unit}"
        f"\npool {process.pool} has {up} of {len(pool)} workers now"
        "\nmend it, then agentq rollout; or go back: agentq deploy install --folder FOLDER "
        "--python PYTHON of the build before && agentq rollout"
    )


def _await_healthy(store: Store, name: str) -> None:
    """Wait until the process holds its lease, and has for a while.

    Raises:
        DeployError: it does not, or ends.
    """
    [first] = systemd.show([systemd.worker_unit(name)])
    until = time.monotonic() + _HEALTHY_WITHIN.total_seconds()
    held_since: float | None = None
    while held_since is None or time.monotonic() - held_since < _SETTLED.total_seconds():
        [now] = systemd.show([systemd.worker_unit(name)])
        if (now.active, now.pid) != ("active", first.pid):
            raise DeployError(f"it is {now.active} ({now.sub})")
        if time.monotonic() > until:
            raise DeployError(f"it holds no lease within {_HEALTHY_WITHIN.total_seconds():g} s")
        held = _holds_lease(store, name, now.pid)
        held_since = (held_since or time.monotonic()) if held else None
        time.sleep(_LOOK_S)


def _holds_lease(store: Store, name: str, pid: int) -> bool:
    own = f"{name}@{socket.gethostname()}"
    try:
        workers = read_status(store, brief=True).workers
    except BrokerUnavailable:
        return False
    return any((one.name, one.pid, one.state) == (own, pid, "up") for one in workers)
