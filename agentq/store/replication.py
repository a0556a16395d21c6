"""Which replicas a primary has, and waiting until one of them has what was just written.

`WAIT` speaks of what its own connection wrote before it. A submit that is repeated writes nothing
(the id is known), so a message to nobody is published in between: it goes to the replicas in order
like every write, and leaves no key behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from agentq.clock import format_duration, milliseconds
from agentq.errors import NotReplicated
from agentq.store.keys import REPLICATED

if TYPE_CHECKING:
    from agentq.store.address import Address
    from agentq.store.calls import Call
    from agentq.store.keys import Keys

REPLICAS = 1
"""How many must have a write before it counts as replicated."""

_SPARE = timedelta(milliseconds=500)
"""Of a call's time limit, at most half of it, that WAIT leaves: servers end a wait up to 100 ms
late, and its answer is to come before the call is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica, as its primary sees it."""

    address: str
    online: bool
    """Whether it follows; False while it loads its first copy."""
    behind: int
    """Bytes of the primary's writes that it has not confirmed."""
    silent_s: int
    """Seconds since it was last heard; one a second is usual."""


def replicas_of(info: Mapping[str, Any] | bytes) -> tuple[Replica, ...]:
    """Return the replicas that a primary's INFO lists, in either form that clients give it in."""
    facts = info if isinstance(info, Mapping) else _facts(info)
    written = int(facts.get("master_repl_offset", 0))
    found = []
    for number in range(int(facts.get("connected_slaves", 0))):
        replica = _fields(facts.get(f"slave{number}", {}))
        found.append(
            Replica(
                address=f"{replica.get('ip', '?')}:{replica.get('port', '?')}",
                online=replica.get("state") == "online",
                behind=max(0, written - int(replica.get("offset", 0))),
                silent_s=int(replica.get("lag", 0)),
            )
        )
    return tuple(found)


def confirmation(keys: Keys, timeout: timedelta | None) -> list[Call]:
    """Return what is sent behind writes on their connection; the last answer is for `confirmed`."""
    limit_ms = milliseconds(_limit(timeout)) if timeout else 0  # 0: for ever
    return [("PUBLISH", f"{keys.prefix}{REPLICATED}", ""), ("WAIT", REPLICAS, limit_ms)]


def confirmed(answer: Any) -> bool:
    """Whether enough replicas have the writes."""
    if isinstance(answer, Exception):
        raise answer
    return int(answer) >= REPLICAS


def none_attached(address: Address) -> NotReplicated:
    """Return what a producer is told before anything is sent."""
    return NotReplicated(
        f"no replica is attached to the primary at {address}: nothing was sent; attach one "
        '(REPLICAOF), or submit with durable="primary"'
    )


def unconfirmed(what: str, timeout: timedelta | None, accepted: list[Any]) -> NotReplicated:
    """Return what a producer is told whose work stands in the primary alone."""
    limit = format_duration(_limit(timeout)) if timeout else "the time limit"
    return NotReplicated(
        f"{what} accepted by the primary but not confirmed by a replica within {limit}: a failover "
        "may lose that; the same key or task id again is taken once",
        accepted=accepted,
    )


def _limit(timeout: timedelta) -> timedelta:
    return timeout - min(_SPARE, timeout / 2)


def _facts(info: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)


def _fields(replica: Mapping[str, Any] | str) -> Mapping[str, Any]:
    if isinstance(replica, str):
        return dict(pair.split("=", 1) for pair in replica.split(",") if "=" in pair)
    return replica
