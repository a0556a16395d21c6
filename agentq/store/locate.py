"""Where a machine's broker is: the one that is set, else the embedded server that runs."""

from __future__ import annotations

from agentq.errors import BrokerNotConfigured
from agentq.settings import Settings
from agentq.settings.installed import has_units, whose_broker
from agentq.store.embedded import default_data_dir, find_running


def broker_url(settings: Settings) -> str:
    """Return the broker's URL.

    Raises:
        BrokerNotConfigured: none is set and no embedded one runs.
    """
    if url := settings.require_broker():
        return url
    data_dir = settings.embedded.data_dir or default_data_dir()
    if url := find_running(data_dir):
        return url
    none = f"no broker: broker.url is not set and no embedded server runs in {data_dir}"
    raise BrokerNotConfigured(
        f"{none}{whose_broker()}"
        if has_units()
        else f"{none}; start one with `agentq up`, or set AGENTQ_BROKER__URL="
        "agentq://127.0.0.1:6379/0"
    )
