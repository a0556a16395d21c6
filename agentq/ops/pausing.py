"""Stopping what harms: pauses of a pool, step, flow or tenant, and purging what waits.

A pause lies in Redis and is looked at by every fetch, so it holds from the next one on and through
every restart. What a purge moves lies in the dead letters; each piece is one call, and an
interrupted one is just asked again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from agentq.clock import milliseconds
from agentq.errors import DeadLettersFull
from agentq.ops.known import Known, meant
from agentq.store import calls
from agentq.store.announced import CELERYS_OWN
from agentq.store.calls import Fitting
from agentq.store.client import Store

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ

BROUGHT_BACK_AT_ONCE = 250
LOOKED_AT_ONCE = 100
"""Messages a call looks at: keeps it under 5 ms."""


class Kind(StrEnum):
    """What can be paused."""

    POOL = "pool"
    STEP = "step"
    FLOW = "flow"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One pause."""

    kind: Kind
    name: str
    for_ms: int
    aside: int
    """Messages that fetches met and put aside; of a paused pool they stay in their queues."""
    ending: bool
    """Whether it is being lifted."""
    unknown: bool = False
    """Whether it is a step or flow that no worker has."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What lifting a pause did."""

    paused: bool
    """Whether it was paused."""
    brought_back: int


def doubt(app: AgentQ, kind: Kind, name: str, *, named: bool, workers: Known) -> str | None:
    """Return why *name* may be no name of *kind*, None where it is one or any may be.

    *named*: whether the user said which app it is. *workers*: what they have, whichever app's.
    """
    if workers.has(kind, name):
        return None
    if not named and kind in (Kind.STEP, Kind.FLOW):
        unsure = f"no app is named (-A), so whether there is a {kind} {name!r} is not known"
        return workers.lacks(kind, name) or unsure
    known = _names_of(app, kind)
    if known is None or name in known:
        return None
    return f"app {app.name!r} has no {kind} {name!r}{meant(name, known)}"


def _names_of(app: AgentQ, kind: Kind) -> Collection[str] | None:
    """Return what *app* has of *kind*; None where any name may be one."""
    match kind:
        case Kind.POOL:
            return app.settings.pools
        case Kind.STEP:
            return [task for task in app.celery.tasks if not task.startswith(CELERYS_OWN)]
        case Kind.FLOW:
            return app.flows
        case Kind.TENANT:
            return None


def pause(store: Store, kind: Kind, name: str) -> bool:
    """Hand out nothing of it from now on; return whether it was not paused before.

    Raises:
        BrokerUnavailable: no answer in time; asking again is safe.
    """
    return bool(store.call(calls.pause(store.keys.prefix, f"{kind}:{name}")))


def resume(store: Store, kind: Kind, name: str) -> Resumed:
    """Lift a pause: what it put aside is handed out before what came later.

    Raises:
        BrokerUnavailable: no answer in time; workers go on with what was begun.
    """
    call = calls.resume(store.keys.prefix, f"{kind}:{name}", BROUGHT_BACK_AT_ONCE)
    was, count, left = store.call(call)
    while left:
        _, moved, left = store.call(call)
        count += moved
    return Resumed(bool(was), count)


def read_pauses(store: Store, now_ms: int) -> tuple[Pause, ...]:
    """Return all pauses, longest first."""
    found = store.command("HGETALL", store.keys.paused())
    names = sorted(found, key=lambda name: int(found[name].lstrip(b"-")))
    lengths = store.pipeline([("LLEN", store.keys.aside(name.decode())) for name in names])
    return tuple(
        _pause(name.decode(), found[name], now_ms, length)
        for name, length in zip(names, lengths, strict=True)
    )


def _pause(text: str, value: bytes, now_ms: int, aside: int) -> Pause:
    kind, _, name = text.partition(":")
    since = int(value.lstrip(b"-"))
    return Pause(
        kind=Kind(kind), name=name, for_ms=now_ms - since, aside=aside, ending=value[:1] == b"-"
    )


def purge(store: Store, fitting: Fitting, *, reason: str) -> int:
    """Move what waits and fits into the dead letters; return how much.

    What workers hold is left to them. Runs are not ended: a letter can be
    replayed; a run fails once the letter that it waits for is dropped.

    Raises:
        DeadLettersFull: there is room for no more; `moved` says how many were.
        BrokerUnavailable: no answer in time; asking again goes on.
    """
    moved = 0
    for source in sources(store, pool=fitting.pool, lane=fitting.lane):
        cursor, more = b"", True
        while more:
            cursor, count, full = store.call(
                calls.purge(
                    store.keys.prefix, source, cursor, LOOKED_AT_ONCE,
                    reason=reason, fitting=fitting,
                )
            )  # fmt: skip
            moved += count
            if full:
                raise DeadLettersFull(moved)
            more = bool(cursor)
    return moved


def sources(store: Store, *, pool: str = "", lane: str = "") -> Iterator[str]:
    """Yield every place where work waits: queues of *pool* and *lane*, delayed, put aside."""
    for queue in sorted(name.decode() for name in store.command("SMEMBERS", store.keys.lanes())):
        its_pool, _, its_lane = queue.rpartition(":")
        if pool in ("", its_pool) and lane in ("", its_lane):
            yield f"r:{queue}"
            yield f"s:{queue}"
    yield "delayed"
    for pause_ in sorted(name.decode() for name in store.command("HKEYS", store.keys.paused())):
        if not pause_.startswith(Kind.POOL):
            yield f"aside:{pause_}"


def ago(duration: timedelta | None) -> int:
    """Return `Fitting.before_ms` for what is older than *duration*."""
    return -max(1, milliseconds(duration)) if duration is not None else 0
