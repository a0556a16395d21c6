"""Where a machine's broker is: the one that is set, else the embedded server that runs."""

from __future__ import annotations

from agentq.errors import BrokerNotConfigured
from agentq.settings import Settings
from agentq.settings.installed import whose_broker
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
    start_one = "; start one with `agentq up`, or set AGENTQ_BROKER__URL=agentq://127.0.0.1:6379/0"
    raise BrokerNotConfigured(
        f"no broker: broker.url is not set and no embedded server runs in {data_dir}"
        f"{whose_broker() or start_one}"
    )
