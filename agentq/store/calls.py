"""The functions as typed calls: what goes into ARGV and what comes back, for both kinds of client.

A call is a plain tuple `("FCALL", name, 1, prefix, ...)`, so that the synchronous client, the
asyncio client and a pipeline send the very same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentq.store.effects import Arg, Effect

Call = tuple[Arg, ...]


@dataclass(frozen=True, slots=True)
class Admission:
    """What one `enqueue` is checked against."""

    dedupe_id: str
    dedupe_ms: int
    pool: str
    lane: str
    limit: int
    """Most messages the lane may hold."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """The record an `enqueue` opens with its first step."""

    id: str
    record: bytes
    """JSON; what `status` shows."""
    deadline_ms: int
    """0 none; negative: that many ms from now, on Redis' clock."""
    keep_ms: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The work is in its queue."""

    depth: int
    """Messages that stood before it."""
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The id was enqueued before; nothing changed."""


@dataclass(frozen=True, slots=True)
class Full:
    """The lane is at its limit; nothing was accepted."""

    depth: int


NO_RUN = NewRun("", b"", 0, 0)

COMPLETE = "aq1_complete"
_AFTER_AT = 7
_COMPLETE_AT = 4
"""Where the arguments of a call begin: behind FCALL, the function, the number of keys, the key."""


def flatten(effects: Sequence[Effect]) -> list[Arg]:
    """Return the effects as ARGV takes them."""
    return [arg for effect in effects for arg in effect]


def enqueue(
    prefix: str, admission: Admission, effects: Sequence[Effect], *, run: NewRun = NO_RUN
) -> Call:
    """Accept new work; answer by `enqueued`."""
    return (
        "FCALL",
        "aq1_enqueue",
        1,
        prefix,
        admission.dedupe_id,
        admission.dedupe_ms,
        admission.pool,
        admission.lane,
        admission.limit,
        run.id,
        run.record,
        run.deadline_ms,
        run.keep_ms,
        *flatten(effects),
    )


def enqueued(reply: list[Any]) -> Accepted | Duplicate | Full:
    """Read the answer of `enqueue`."""
    match reply:
        case [b"ok", depth, deadline]:
            return Accepted(depth, deadline)
        case [b"full", depth]:
            return Full(depth)
        case _:
            return Duplicate()


def stage(
    prefix: str, group: str, offset: int, messages: Sequence[Sequence[Arg]], *, started: bool
) -> Call:
    """Stage one chunk of a group's members; *started*: of work that gets through a full server."""
    flat = [arg for message in messages for arg in message]
    return (
        "FCALL",
        "aq1_stage_started" if started else "aq1_stage",
        1,
        prefix,
        group,
        offset,
        *flat,
    )


def open_staged(prefix: str, dedupe_id: str, dedupe_ms: int, effects: Sequence[Effect]) -> Call:
    """Make staged members visible."""
    return ("FCALL", "aq1_open", 1, prefix, dedupe_id, dedupe_ms, *flatten(effects))


def fetch(
    prefix: str, worker: str, pool: str, slots: int, used: int, quotas: Sequence[Arg]
) -> Call:
    """Hand work to a worker; *quotas* alternates lane and quota."""
    return ("FCALL", "aq1_fetch", 1, prefix, worker, pool, slots, used, *quotas)


def complete(
    prefix: str, stream: Arg, entry: Arg, run: str, keep_ms: int, effects: Sequence[Effect]
) -> Call:
    """End a delivery with its effects."""
    return (
        "FCALL", "aq1_complete", 1, prefix, stream, entry, run, keep_ms, *flatten(effects),
    )  # fmt: skip


def complete_many(completions: Sequence[Call]) -> Call:
    """Put several `complete` calls of one cell into one."""
    flat: list[Arg] = []
    for call in completions:
        flat.append(len(call) - _COMPLETE_AT)
        flat.extend(call[_COMPLETE_AT:])
    return ("FCALL", "aq1_complete_many", 1, completions[0][3], *flat)


def fail(  # noqa: PLR0913 -- the function's arguments, one for one
    prefix: str,
    lane: str,
    stream: Arg,
    entry: Arg,
    *,
    after_ms: int,
    retry: bool,
    effects: Sequence[Effect] = (),
) -> Call:
    """Hand a delivery out again after a delay."""
    return (
        "FCALL", "aq1_fail", 1, prefix, lane, stream, entry, after_ms, int(retry),
        *flatten(effects),
    )  # fmt: skip


def died(prefix: str, lane: str, stream: Arg, entry: Arg, *, limit: int, keep_ms: int) -> Call:
    """Hand a delivery out again whose process died: charged, given up after *limit* attempts."""
    return ("FCALL", "aq1_fail", 1, prefix, lane, stream, entry, keep_ms, -limit)


def delay_of(call: Call) -> int:
    """Return after how many ms *call* hands a delivery out again; 0: at once, or not at all."""
    failed = call[1] == "aq1_fail" and int(call[_AFTER_AT + 1]) >= 0  # below 0: see `died`
    return int(call[_AFTER_AT]) if failed else 0


def renew(prefix: str, worker: str, lease_ms: int, *, first: bool, report: bytes) -> Call:
    """Take or renew a lease."""
    return ("FCALL", "aq1_renew", 1, prefix, worker, lease_ms, int(first), report)


def release(prefix: str, worker: str, *, died: bool, limit: int, keep_ms: int) -> Call:
    """Give up a lease and what was held under it."""
    return ("FCALL", "aq1_release", 1, prefix, worker, int(died), limit, keep_ms)


def reap(prefix: str, limit: int, gap_ms: int, keep_ms: int) -> Call:
    """Hand out again what a dead process held."""
    return ("FCALL", "aq1_reap", 1, prefix, limit, gap_ms, keep_ms)


def promote(prefix: str, most: int, keep_ms: int) -> Call:
    """Move what is due, end what is late."""
    return ("FCALL", "aq1_promote", 1, prefix, most, keep_ms)


def held(prefix: str, worker: str) -> Call:
    """List what is pending under a worker's name."""
    return ("FCALL", "aq1_held", 1, prefix, worker)


def cancel(prefix: str, run: str, keep_ms: int) -> Call:
    """Cancel a run."""
    return ("FCALL", "aq1_cancel", 1, prefix, run, keep_ms)
