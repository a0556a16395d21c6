"""Restarts the worker processes one after the other, each only while the one before is well."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from agentq.errors import BrokerUnavailable, DeployError
from agentq.host.plan import Process
from agentq.ops.deploy import systemd
from agentq.ops.deploy.machine import Machine
from agentq.ops.deploy.render import STOP_SLACK
from agentq.ops.status import read_status
from agentq.store.client import Store

_LOOK_S = 0.25
_SETTLED = timedelta(seconds=2)
"""What ends so soon after it took work was not well."""
_HEALTHY_WITHIN = timedelta(seconds=30)


def rollout(machine: Machine, pools: tuple[str, ...], *, say: Callable[[str], None]) -> None:
    """Restart each process of *pools* (none named: of all), one at a time, the shared pools first.

    A process drains, starts, takes work, and holds its lease for `_SETTLED` before the next one.

    Raises:
        DeployError: the first that is not well; those behind it run on as they were.
    """
    settings = machine.settings()
    for pool in set(pools) - settings.pools.keys():
        raise DeployError(f"there is no pool {pool!r}; there are: {', '.join(settings.pools)}")
    chosen = [one for one in machine.plan().processes if not pools or one.pool in pools]
    # A fault of the new build shows first where nobody waits for headroom.
    chosen.sort(key=lambda process: settings.pools[process.pool].purpose == "exclusive")
    limit = settings.worker.drain_timeout + STOP_SLACK + systemd.START_LIMIT
    store = machine.store()
    for done, process in enumerate(chosen):
        began = time.monotonic()
        try:
            systemd.systemctl("restart", systemd.worker_unit(process.name), within=limit)
            _await_healthy(store, process.name)
        except DeployError as error:
            raise DeployError(
                f"{process.name} is not well after its restart: {error}; rolled out: {done} of "
                f"{len(chosen)}, {_left(chosen[done + 1 :])}; see journalctl -u "
                f"{systemd.worker_unit(process.name)}"
            ) from error
        except KeyboardInterrupt:
            say(f"{process.name}: systemd goes on with its restart; {_left(chosen[done + 1 :])}")
            raise
        say(f"{process.name}: restarted and well after {time.monotonic() - began:.1f} s")


def _left(behind: Sequence[Process]) -> str:
    return f"left as they were: {', '.join(one.name for one in behind) or 'none'}"


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
