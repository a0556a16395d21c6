"""The functions as typed calls: what goes into ARGV and what comes back, for both kinds of client.

A call is a plain tuple `("FCALL", name, 1, prefix, ...)`, so that the synchronous client, the
asyncio client and a pipeline send the very same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
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
    """Most messages the lane may hold, and as many that are delayed."""
    max_bytes: int
    """Most bytes they may have together, and those that are delayed."""
    tenant: str = ""
    max_per_tenant: int = 0
    """Most unfinished runs of the tenant; 0: any number."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """The record an `enqueue` opens with its first step."""

    id: str
    record: bytes
    """JSON; what `status` shows."""
    deadline_ms: int
    """0 none; negative: that many ms from now, on Redis' clock."""
    keep_ms: int
    max_members: int
    """Most members of its fan-outs together."""
    max_bytes: int
    """Most bytes of its messages and outcomes together."""


@dataclass(frozen=True, slots=True)
class Load:
    """How a queue stands, as its producer is told."""

    fill: float
    """Of its worst cap: 0 empty, 1 full."""
    waiting: int
    """Messages that nobody has taken yet."""
    rate: float | None
    """Completions of the pool in a second; None: not measured yet."""

    @property
    def expected_wait(self) -> timedelta | None:
        """Return how long what is enqueued now will wait; None: not known, or nobody works."""
        if not self.waiting:
            return timedelta(0)
        return timedelta(seconds=self.waiting / self.rate) if self.rate else None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The work is in its queue."""

    depth: int
    """Messages that stood before it."""
    deadline_ms: int
    load: Load = field(default=Load(0.0, 0, None), compare=False)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The id was enqueued before; nothing changed."""


@dataclass(frozen=True, slots=True)
class Full:
    """A cap is reached; nothing was accepted."""

    reason: str
    """``length``, ``bytes``, ``delayed``, ``delayed bytes``, ``tenant``, ``left`` or ``memory``."""
    depth: int
    """How much there is of that."""
    limit: int
    retry_after: timedelta = field(compare=False)


NO_RUN = NewRun("", b"", 0, 0, 0, 0)

COMPLETE = "aq1_complete"
PARK = "aq1_park"
FAIL = "aq1_fail"
HANDS_BACK = (FAIL, PARK)
"""Both take lane, stream and entry behind the prefix."""
HANDED_BACK = 250
"""What one call of `reap` or `release` hands back at most; so many mean: call again."""
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
        admission.max_bytes,
        admission.tenant,
        admission.max_per_tenant,
        run.id,
        run.record,
        run.deadline_ms,
        run.keep_ms,
        run.max_members,
        run.max_bytes,
        *flatten(effects),
    )


def enqueued(reply: list[Any]) -> Accepted | Duplicate | Full:
    """Read the answer of `enqueue`."""
    match reply:
        case [b"ok", depth, deadline, fill, waiting, rate]:
            load = Load(fill / 1000, waiting, rate / 1000 if rate >= 0 else None)
            return Accepted(depth, deadline, load)
        case [b"full", *_]:
            return full(reply)
        case _:
            return Duplicate()


def full(reply: list[Any]) -> Full:
    """Read the answer of a function that refused new work."""
    _, reason, depth, limit, retry_ms = reply
    return Full(reason.decode(), depth, limit, timedelta(milliseconds=retry_ms))


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


def open_staged(
    prefix: str, admission: Admission, effects: Sequence[Effect], *, count: int = 0
) -> Call:
    """Make *count* staged members visible; no pool: they are not checked against caps."""
    return (
        "FCALL", "aq1_open", 1, prefix, admission.dedupe_id, admission.dedupe_ms,
        admission.pool, admission.lane, admission.limit, admission.max_bytes, count,
        *flatten(effects),
    )  # fmt: skip


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
        "FCALL", FAIL, 1, prefix, lane, stream, entry, after_ms, int(retry),
        *flatten(effects),
    )  # fmt: skip


def died(prefix: str, lane: str, stream: Arg, entry: Arg, *, limit: int, keep_ms: int) -> Call:
    """Hand a delivery out again whose process died: charged, given up after *limit* attempts."""
    return ("FCALL", FAIL, 1, prefix, lane, stream, entry, keep_ms, -limit)


def delay_of(call: Call) -> int:
    """Return after how many ms *call* hands a delivery out again; 0: at once, or not at all."""
    failed = call[1] == FAIL and int(call[_AFTER_AT + 1]) >= 0  # below 0: see `died`
    return int(call[_AFTER_AT]) if failed else 0


def renew(prefix: str, worker: str, lease_ms: int, *, first: bool, report: bytes) -> Call:
    """Take or renew a lease."""
    return ("FCALL", "aq1_renew", 1, prefix, worker, lease_ms, int(first), report)


def release(prefix: str, worker: str, *, died: bool, limit: int, keep_ms: int) -> Call:
    """Give up a lease and what was held under it."""
    return ("FCALL", "aq1_release", 1, prefix, worker, int(died), limit, keep_ms)


def reap(prefix: str, limit: int, gap_ms: int, keep_ms: int) -> Call:
    """Hand out again what a dead process held."""
    return ("FCALL", "aq1_reap", 1, prefix, limit, gap_ms, keep_ms, 1)


def park(  # noqa: PLR0913 -- the function's arguments, one for one
    prefix: str,
    lane: str,
    stream: Arg,
    entry: Arg,
    *,
    after_ms: int,
    name: str,
    limit_ms: int,
    keep_ms: int,
) -> Call:
    """Hand back a delivery whose code, *name*, this worker lacks; dead after *limit_ms* of that."""
    return (
        "FCALL", PARK, 1, prefix, lane, stream, entry, after_ms, name, limit_ms, keep_ms,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Letters:
    """How dead letters are kept."""

    keep_ms: int = 14 * 86_400_000
    max_number: int = 10_000
    max_bytes: int = 67_108_864
    """Of all letters: reasons, heads and bodies."""
    max_payload: int = 262_144
    """A larger head or body is cut."""


def promote(
    prefix: str,
    most: int,
    keep_ms: int,
    *,
    letters: Letters = Letters(),
    retries: str = "20 10",
) -> Call:
    """Move what is due, end what is late, drop letters that are too old, many or large.

    *retries*: percent of attempts and number a second that may be retries.
    """
    return (
        "FCALL", "aq1_promote", 1, prefix, most, keep_ms,
        letters.keep_ms, letters.max_payload, retries, letters.max_number, letters.max_bytes,
    )  # fmt: skip


def pause(prefix: str, what: str) -> Call:
    """Pause *what*, e.g. ``pool:shared``; answers 1 where it was not paused."""
    return ("FCALL", "aq1_pause", 1, prefix, what)


def resume(prefix: str, what: str, most: int) -> Call:
    """Lift a pause, *most* messages a call; answers [was paused, brought back, left]."""
    return ("FCALL", "aq1_resume", 1, prefix, what, most)


def replay(prefix: str, letters: Sequence[Arg]) -> Call:
    """Move dead letters back into their queues; answers one word each, for the first of them."""
    return ("FCALL", "aq1_replay", 1, prefix, *letters)


def drop(prefix: str, letters: Sequence[Arg]) -> Call:
    """Delete dead letters; answers as `replay`."""
    return ("FCALL", "aq1_drop", 1, prefix, *letters)


@dataclass(frozen=True, slots=True)
class Fitting:
    """What `purge` moves: empty fields fit anything."""

    pool: str = ""
    lane: str = ""
    step: str = ""
    flow: str = ""
    tenant: str = ""
    before_ms: int = 0
    """Only what was enqueued before this; negative: minus that many ms ago."""


def purge(
    prefix: str, source: str, cursor: Arg, most: int, *, reason: str, fitting: Fitting
) -> Call:
    """Move a piece of what waits into the dead letters; answers [cursor, moved, no room]."""
    f = fitting
    return (
        "FCALL", "aq1_purge", 1, prefix, source, cursor, most, reason,
        f.pool, f.lane, f.step, f.flow, f.tenant, f.before_ms,
    )  # fmt: skip


def find(prefix: str, source: str, cursor: Arg, most: int, run: str) -> Call:
    """Look for a run's messages in a piece of what waits; answers [cursor, looked at, hits]."""
    return ("FCALL", "aq1_find", 1, prefix, source, cursor, most, run)


def held(prefix: str, worker: str) -> Call:
    """List what is pending under a worker's name."""
    return ("FCALL", "aq1_held", 1, prefix, worker)


def cancel(prefix: str, run: str, keep_ms: int) -> Call:
    """Cancel a run."""
    return ("FCALL", "aq1_cancel", 1, prefix, run, keep_ms)
