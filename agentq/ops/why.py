"""Why a run is where it is: everything of it that waits or runs, found where it is now.

Queues are looked through piece by piece by a function that only reads, so a long queue costs the
operator's time and not the server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import orjson

from agentq.broker import envelope
from agentq.clock import milliseconds
from agentq.ops.dead import Wanted, letters
from agentq.ops.known import Known, read_known
from agentq.ops.pausing import Kind, sources
from agentq.ops.status import CellStatus, Worker, read_status
from agentq.store import calls
from agentq.store.keys import GROUP

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ
    from agentq.runs.record import RunStatus
    from agentq.store.client import Store

LOOKED_AT_ONCE = 250
_TOP_JOINS = 20
"""Fan-outs of a flow that are not inside another one: more are unusual."""

_HELD_MOST = 1000

Where = Literal["queue", "worker", "delayed", "parked", "paused", "fan-in", "dead letter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thing of the run that has not ended."""

    step: str
    where: Where
    said: str
    """In words: which queue and place, which limit, who holds it."""
    for_ms: int | None
    """Since it was enqueued, was handed over or died; None: not known."""
    alike: str = ""
    """The same of all that are in the same place for the same reason; empty: there are none."""
    stuck: bool = False
    """Whether it waits for somebody to do something: lift a pause, start a worker, replay it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What of a run is alike, in the order found."""

    waits: tuple[Wait, ...]

    @property
    def said(self) -> str:
        """In words, of one thing or of all."""
        first, count = self.waits[0], len(self.waits)
        step = first.step or "?"
        return f"{step}: {first.said}" if count == 1 else f"{count} of {step} {first.alike}"

    @property
    def for_ms(self) -> int | None:
        """Since when the longest is there; None: not known."""
        return max((wait.for_ms for wait in self.waits if wait.for_ms is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What a run waits for, or how it ended."""

    run: str
    state: str
    said: str
    waits: tuple[Wait, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """What it waits for, a line each: a wide fan-out has thousands of members."""
        found: dict[object, list[Wait]] = {}
        for place, wait in enumerate(self.waits):
            key = (wait.step, wait.where, wait.alike) if wait.alike else place
            found.setdefault(key, []).append(wait)
        return tuple(Group(waits=tuple(waits)) for waits in found.values())


def explain(aq: AgentQ, run_id: str) -> Why:
    """Return what run *run_id* waits for, or what it ended with.

    Raises:
        RunNotFound: it never was, or was kept for `runs.keep` and is gone.
        BrokerUnavailable: no answer in time.
    """
    status = aq.run(run_id).status()
    waits: tuple[Wait, ...] = ()
    if not status.state.ended:
        waits = tuple(_Search(aq.store, run_id).waits())
    said = _ended(status) if status.state.ended else _running(status, waits)
    return Why(run=run_id, state=status.state.value, said=said, waits=waits)


def _ended(status: RunStatus) -> str:
    text = f"{status.state.value} since {status.ended:%Y-%m-%d %H:%M:%S} UTC"
    if status.state == "failed" and (error := orjson.loads(status.result) or {}):
        text += f": step {error.get('step')}: {error.get('kind')}: {error.get('message')}"
    return text


def _running(status: RunStatus, waits: tuple[Wait, ...]) -> str:
    text = f"running since {status.submitted:%Y-%m-%d %H:%M:%S} UTC"
    if status.deadline is not None:
        text += f", deadline {status.deadline:%H:%M:%S} UTC"
    if not waits:
        text += "; nothing of it waits or runs at this moment"
    return text


class _Search:
    """Looks for one run."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._cell: CellStatus = read_status(store)
        seconds, micros = store.command("TIME")
        self._now_ms = int(seconds) * 1000 + int(micros) // 1000
        self._joins: set[str] = {f"{run}:j{node}" for node in range(_TOP_JOINS)}

    def waits(self) -> Iterator[Wait]:
        """Yield what is found: held, waiting, fan-ins, dead letters."""
        yield from self._held()
        returned = 0
        for source in sources(self._store):
            hits, seen = self._hits(source)
            before = returned if source.startswith("s:") else 0
            for place, hit in hits:
                self._note(hit[9])
                yield self._wait(source, before + place + 1, before + seen, hit)
            returned = seen if source.startswith("r:") else 0
        yield from self._fan_ins()
        for letter in letters(self._store, Wanted()):
            if letter.run == self._run:
                age = milliseconds(datetime.fromtimestamp(self._now_ms / 1000, UTC) - letter.died)
                said = f"is dead letter {letter.id}: {letter.reason}"
                alike = f"are dead letters: {letter.reason}"
                yield Wait(
                    step=letter.task, where="dead letter", said=said, for_ms=age, alike=alike,
                    stuck=True,
                )  # fmt: skip

    def _note(self, join: bytes) -> None:
        if join:
            self._joins.add(join.decode().rpartition("|")[0])

    # -- what waits -------------------------------------------------------------------------------

    def _hits(self, source: str) -> tuple[list[tuple[int, list[Any]]], int]:
        """Return (place from 0, hit) of the run's messages in a source, and how many it holds."""
        found: list[tuple[int, list[Any]]] = []
        cursor, seen, more = b"", 0, True
        while more:
            call = calls.find(self._store.keys.prefix, source, cursor, LOOKED_AT_ONCE, self._run)
            cursor, count, hits = self._store.call(call)
            found += [(seen + hit[0], hit) for hit in hits]
            seen += count
            more = bool(cursor)
        return found, seen

    def _wait(self, source: str, place: int, of: int, hit: list[Any]) -> Wait:
        _, _, _, step, pool, lane, _, born, _, _ = hit
        name, age = step.decode(), self._now_ms - born
        if source == "delayed":
            return self._delayed(hit, age)
        if source.startswith("aside:"):
            kind, _, what = source.removeprefix("aside:").partition(":")
            said = f"{kind} {what} is paused"
            alike = f"wait: {said}"
            return Wait(step=name, where="paused", said=said, for_ms=age, alike=alike, stuck=True)
        queue, stop = f"{pool.decode()}:{lane.decode()}", self._stop(pool.decode(), name)
        limit = stop or self._limit(pool.decode())
        said = f"waits in queue {queue}, place {place} of {of}{limit}"
        alike = f"wait in queue {queue}{limit}"
        return Wait(step=name, where="queue", said=said, for_ms=age, alike=alike, stuck=bool(stop))

    def _delayed(self, hit: list[Any], age: int) -> Wait:
        member, step, lacking, retries = hit[1], hit[3].decode(), hit[8].decode(), hit[6]
        pool = hit[4].decode()
        score, place, of = self._store.pipeline(
            [
                ("ZSCORE", self._store.keys.delayed(), member),
                ("ZRANK", self._store.keys.retries(pool), member),
                ("ZCARD", self._store.keys.retries(pool)),
            ]
        )
        budget = f"retries of pool {pool} are at their budget (retry.budget)"
        if place is not None:
            said = f"waits for retry {retries}, place {place + 1} of {of}; {budget}"
            alike = f"wait for retry {retries}; {budget}"
            return Wait(step=step, where="delayed", said=said, for_ms=age, alike=alike)
        left = max(0.0, (float(score) - self._now_ms) / 1000) if score is not None else 0.0
        if lacking:
            said = f"is parked: no worker has {lacking}; offered again in {left:.1f} s"
            alike = f"are parked: no worker has {lacking}"
            return Wait(step=step, where="parked", said=said, for_ms=age, alike=alike, stuck=True)
        what = f"waits for retry {retries}" if retries else "is delayed"
        alike = f"wait for retry {retries}" if retries else "are delayed"
        held = f"; {budget}" if retries and of else ""
        said = f"{what}, due in {left:.1f} s{held}"
        return Wait(step=step, where="delayed", said=said, for_ms=age, alike=alike + held)

    @cached_property
    def _known(self) -> Known:
        return read_known(self._store)

    def _stop(self, pool: str, step: str) -> str:
        """Return what stops *step* in a pool's queue, as far as it shows."""
        if any(p.kind is Kind.POOL and p.name == pool and not p.ending for p in self._cell.pauses):
            return f"; pool {pool} is paused"
        if not self._serving(pool):
            return f"; no worker serves pool {pool}"
        return f"; {lacking}" if (lacking := self._known.lacks(Kind.STEP, step)) else ""

    def _limit(self, pool: str) -> str:
        """Return what keeps the queue of a pool that is served from moving, as far as it shows."""
        workers = self._serving(pool)
        running, slots = sum(w.running for w in workers), sum(w.slots for w in workers)
        if slots and running >= slots:
            return f"; all {slots} slots of pool {pool} are taken"
        return ""

    def _serving(self, pool: str) -> list[Worker]:
        return [w for w in self._cell.workers if pool in w.pools and w.state == "up"]

    # -- what runs --------------------------------------------------------------------------------

    def _held(self) -> Iterator[Wait]:
        for name in sorted(self._store.command("SMEMBERS", self._store.keys.lanes())):
            pool, _, lane = name.decode().rpartition(":")
            keys = self._store.keys
            for stream in (keys.returned(pool, lane), keys.stream(pool, lane)):
                yield from self._held_of(stream)

    def _held_of(self, stream: str) -> Iterator[Wait]:
        if not self._store.command("EXISTS", stream):
            return
        pending = self._store.client.xpending_range(stream, GROUP, "-", "+", _HELD_MOST)
        entries = self._store.pipeline(
            [("XRANGE", stream, one["message_id"], one["message_id"]) for one in pending]
        )
        for one, entry in zip(pending, entries, strict=True):
            if isinstance(entry, Exception) or not entry:
                continue
            flat = entry[0][1]
            fields = (
                flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
            )
            if fields.get(b"r") == self._run.encode():
                self._note(fields.get(b"j", b""))
                yield self._holding(one, fields)

    def _holding(self, pending: dict[str, Any], fields: dict[bytes, bytes]) -> Wait:
        worker = pending["consumer"].decode()
        until = self._store.command("ZSCORE", self._store.keys.workers(), worker)
        left = (float(until) - self._now_ms) / 1000 if until is not None else -1.0
        lease = (
            f"lease ends in {left:.1f} s" if left > 0 else "whose lease is over: handed out anew"
        )
        step = envelope.task_of(fields[b"h"])
        name, age = worker.partition("#")[0], pending["time_since_delivered"]
        return Wait(
            step=step, where="worker", said=f"runs on {name}, {lease}", for_ms=age,
            alike=f"run on {name}{'' if left > 0 else ', ' + lease}",
        )  # fmt: skip

    # -- what it gathers --------------------------------------------------------------------------

    def _fan_ins(self) -> Iterator[Wait]:
        keys = self._store.keys
        for join in sorted(self._joins):
            state, width, more, done = self._store.command(
                "HMGET", keys.join(join), "state", "width", "more", "done"
            )
            if state == b"open" and (left := self._store.command("LLEN", keys.join_waiting(join))):
                of = int(width) + int(more)
                said = f"{int(done)} of {of} members have ended; {left} wait for `at_once`"
                yield Wait(step=f"fan-in {join}", where="fan-in", said=said, for_ms=None)
            elif state == b"open":
                said = f"{int(done)} of {int(width) + int(more)} members have ended"
                yield Wait(step=f"fan-in {join}", where="fan-in", said=said, for_ms=None)
