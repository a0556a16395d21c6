"""For who is at a machine with installed units: their cell, and how a worker starts there."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from agentq.errors import BrokerNotConfigured
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
        units = f"agentq-worker@{pool}-*" if pool else "agentq-worker@*"
        return f"systemctl start agentq.target; journalctl -n 50 -u '{units}' says why one ended"
    worker = f"agentq worker --pool {pool or 'NAME'} -A module:attribute"
    return f"{worker}, or agentq up"
