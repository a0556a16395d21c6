"""For who is at a machine with installed units: their cell, and how a worker starts there."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence

from agentq.errors import BrokerNotConfigured, DeployError, SettingsError
from agentq.settings import installed, load_settings
from agentq.settings.installed import has_units
from agentq.store.locate import broker_url


def adopt(environ: MutableMapping[str, str]) -> None:
    """Have this process read the settings that the units read, where no other broker is named.

    As root: others may not read the units' password. *environ*: this process' variables; those that
    it has, and are not empty, stay as they are.
    """
    if os.geteuid() or not has_units():
        return
    try:
        broker_url(load_settings(environ=environ))
    except BrokerNotConfigured:
        from agentq.ops.deploy.machine import Machine  # noqa: PLC0415 -- few need it

        for name, value in Machine(root=installed.ROOT).variables().items():
            if not environ.get(name):  # an empty one names nothing: what filled it is not there
                environ[name] = value


def start(pool: str = "") -> str:
    """Return how a worker of *pool* (none: of any) is started here, and why one is not there."""
    if has_units():
        return _start_unit(pool)
    return f"agentq worker --pool {pool or 'NAME'} -A module:attribute, or agentq up"


def _start_unit(pool: str) -> str:
    from agentq.ops.deploy import systemd  # noqa: PLC0415 -- few need it

    seats = _seats()
    own = systemd.of_pool(seats or (), pool) if pool else seats
    if seats is not None and not own:
        return (
            f"agentq scale {pool or 'POOL'}=1, or what the settings say: agentq deploy install && "
            f"agentq rollout; the plan of this machine has no process for {pool or 'any pool'}"
        )
    if ending := _ending([systemd.worker_unit(one) for one in own or ()]):
        return (
            "agentq pools --check says why it ends each time that systemd starts it: mend that; "
            f"journalctl -n 50 -u {' -u '.join(ending)} has all that it said"
        )
    units = f"agentq-worker@{pool}-*" if pool else "agentq-worker@*"
    return f"systemctl start agentq.target; journalctl -n 50 -u '{units}' says why one ended"


def _ending(units: Sequence[str]) -> list[str]:
    """Return those that systemd starts and that end: to start them once more is no help."""
    from agentq.ops.deploy import systemd  # noqa: PLC0415 -- as above

    try:
        found = systemd.show(units) if systemd.runs_here() else []
    except DeployError:  # it does not say
        return []
    return [
        one.name for one in found
        if one.active == "failed" or (one.active == "activating" and one.restarts)
    ]  # fmt: skip


def _seats() -> list[str] | None:
    """Return the worker processes in this machine's plan; None: it can not be read."""
    from agentq.host.plan import read_plan  # noqa: PLC0415 -- as above
    from agentq.ops.deploy.render import PLAN  # noqa: PLC0415

    try:
        return [one.name for one in read_plan(installed.ROOT / PLAN).processes]
    except SettingsError:
        return None
