"""What the server says of itself, asked once for all checks: only commands that read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentq.ops.doctor.configured import is_production
from agentq.ops.replies import facts, pairs
from agentq.ops.status import CellStatus, read_status

if TYPE_CHECKING:
    from agentq.settings import Settings
    from agentq.store.address import Address
    from agentq.store.client import Store


_ASKED = ("append*", "maxmemory*", "dir", "latency-monitor-threshold", "min-replicas-to-write")
"""Not all of the configuration: passwords are in it."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A server and its cell at one moment."""

    settings: Settings
    address: Address
    info: Mapping[str, str]
    config: Mapping[str, str]
    """Empty: this user may not ask for it."""
    cell: CellStatus
    local: bool
    """Whether the server is on this machine, as far as its address tells."""

    @property
    def production(self) -> bool:
        """Whether it is production's."""
        return is_production(self.settings)

    @property
    def embedded(self) -> bool:
        """Whether it is the server of `agentq up`, found because no other is set."""
        return self.settings.broker.url is None

    def number(self, name: str) -> int:
        """Return a number of INFO; 0 where this server does not have it."""
        return int(self.info.get(name, "0"))

    @property
    def folder(self) -> Path | None:
        """Return where its data is, if that is on this machine and told."""
        return Path(self.config["dir"]) if self.local and "dir" in self.config else None


def read_facts(store: Store, settings: Settings) -> Facts:
    """Ask.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    info, config = store.pipeline([("INFO",), ("CONFIG", "GET", *_ASKED)])
    address = store.address
    return Facts(
        settings=settings,
        address=address,
        info=facts(info),
        config=pairs(config),
        cell=read_status(store),
        local=address.local,
    )
