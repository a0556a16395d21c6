"""Moves what waits in a stock Celery's lists into our queues, and back.

Each message is copied and marked as copied in the same call, deleted where it was, its mark too.
Whoever is killed in between does it again: the mark makes the copy once. It names this message and
not its task, whose id may come again, and ends with the move: an equal one that comes later (moved
back, sent again, restored from a backup) was not copied.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from agentq.broker import envelope, publisher, routing
from agentq.broker.message import message_of
from agentq.broker.terms import Terms
from agentq.clock import milliseconds
from agentq.errors import PayloadTooLarge
from agentq.store import calls
from agentq.store.kombu_lists import KombuLists, lists_of

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ

MARKED = timedelta(days=7)
"""How long the copy of an interrupted move is remembered, and so how long one may be."""

AT_ONCE = 100

_LEASE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a move did."""

    moved: int
    """Deleted where they were: copied now, or by a move before that was interrupted."""
    left: int
    """Left where they were: no message, too large, or a step of a flow, which Celery lacks."""


def from_celery(
    aq: AgentQ, url: str, queues: Sequence[str], *, pool: str, unacked: bool
) -> Migrated:
    """Move what waits in *queues* of the Redis at *url* into our queues.

    One move at a time, and no stock worker of these queues meanwhile: what another takes between
    our look and our delete is there twice.

    Args:
        aq: whose cell it goes to.
        url: `redis://...`, as the stock Celery has it.
        queues: a queue that is named as one of our pools goes there, others to *pool*.
        pool: see *queues*.
        unacked: also what stock workers took and did not end: only when those are stopped.

    Raises:
        QueueFull: a lane is full; what was moved is, ask again when there is room.
        BrokerUnavailable: one of the two did not answer; ask again.
    """
    lists = KombuLists(url=url, timeout=aq.settings.broker.timeout)
    pool_of = {queue: queue if queue in aq.settings.pools else pool for queue in queues}
    outcomes: list[bool] = []
    try:
        for queue in queues:
            for key in lists_of(queue):
                outcomes += _moved_list(aq, lists, key, pool_of[queue])
        if unacked:
            outcomes += _moved_unacked(aq, lists, pool_of)
    finally:
        lists.close()
    return Migrated(outcomes.count(True), outcomes.count(False))


def _moved_list(aq: AgentQ, lists: KombuLists, key: str, pool: str) -> Iterator[bool]:
    """Move one list, oldest first; yield for each message whether it was moved or left."""
    left = 0
    while (raw := lists.oldest(key, left)) is not None:
        if mark := _copied(aq, raw, pool):
            lists.delete(key, raw)
            _forget(aq, mark)
        left += not mark
        yield bool(mark)


def _moved_unacked(aq: AgentQ, lists: KombuLists, pool_of: dict[str, str]) -> Iterator[bool]:
    """Move what workers of these queues took; yield as `_moved_list`."""
    for tag, raw in lists.unacked():
        message, _, queue = orjson.loads(raw)
        if queue in pool_of:
            if mark := _copied(aq, orjson.dumps(message), pool_of[queue]):
                lists.delete_unacked(tag)
                _forget(aq, mark)
            yield bool(mark)


def _copied(aq: AgentQ, raw: bytes, pool: str) -> str:
    """Copy one of kombu's messages, once; return its mark, "" where it can not be in our queues."""
    terms = replace(Terms.of(aq.settings), dedupe_ms=milliseconds(MARKED))
    try:
        message: Any = orjson.loads(raw)
        if message["properties"].get("body_encoding") == "base64":
            message["body"] = base64.b64decode(message["body"])
        outgoing, once = message_of(pool, message)
        envelope.unpack(outgoing.headers)
        # The tag is new at each publish; what a worker took and gave back keeps it.
        tag = message["properties"].get("delivery_tag")
        mark = f"migrated:{_name(tag, once, outgoing.body)}"
        publisher.enqueue(aq.store, terms, outgoing, mark)
    except (ValueError, TypeError, KeyError, AttributeError, PayloadTooLarge):
        return ""
    return mark


def _forget(aq: AgentQ, mark: str) -> None:
    aq.store.command("UNLINK", aq.store.keys.accepted(mark))


def _name(*parts: object) -> str:
    """Return what tells a message from all others."""
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def to_celery(aq: AgentQ, url: str, pools: Sequence[str], *, queue: str | None) -> Migrated:
    """Move what waits in *pools* into the lists of the Redis at *url*.

    Our workers of these pools are to be stopped: what a move that is killed had in its hands comes
    back after its lease, and one of them would run it. Delayed work stays until it is due.

    Args:
        aq: whose cell it is taken from.
        url: `redis://...`, as the stock Celery has it.
        pools: which.
        queue: where all of it goes; None: each pool's work to the queue of its name.

    Raises:
        BrokerUnavailable: one of the two did not answer; ask again.
    """
    lists = KombuLists(url=url, timeout=aq.settings.broker.timeout)
    worker, prefix = f"migrate#{uuid4().hex[:8]}", aq.store.keys.prefix
    counts = {True: 0, False: 0}
    try:
        for pool in pools:
            while entries := _taken(aq, worker, pool):
                for entry in entries:
                    mark = _pushed(lists, entry, queue or pool)
                    if mark:
                        end = calls.complete(prefix, entry[1], entry[2], "", 0, ())
                        if aq.store.call(end) != b"stale":
                            lists.forget(mark)
                    counts[bool(mark)] += 1
    finally:
        lists.close()
        _let_go(aq, worker)
    return Migrated(counts[True], counts[False])


def _let_go(aq: AgentQ, worker: str) -> None:
    """Give back what was taken and left."""
    keep_ms = Terms.of(aq.settings).keep_ms
    call = calls.release(aq.store.keys.prefix, worker, died=False, limit=1_000, keep_ms=keep_ms)
    while aq.store.call(call) >= calls.HANDED_BACK:
        pass


def _taken(aq: AgentQ, worker: str, pool: str) -> list[Any]:
    """Take what waits, as a worker does: nobody else has it meanwhile."""
    prefix = aq.store.keys.prefix
    quotas = [arg for lane in routing.LANES for arg in (lane, AT_ONCE)]
    report = orjson.dumps({"hostname": "migrate", "suspects": 1})
    aq.store.call(calls.renew(prefix, worker, _LEASE_MS, first=True, report=report))
    _, entries = aq.store.call(calls.fetch(prefix, worker, pool, AT_ONCE, 0, quotas))
    return entries or []


def _pushed(lists: KombuLists, entry: list[Any], queue: str) -> str:
    """Push one entry of `fetch` as kombu would, once; return its mark, "" where it can not be."""
    lane, _, entry_id, flat, _, _ = entry
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if fields.get(b"r") or fields.get(b"j"):
        return ""  # a step's run and fan-in are ours alone
    try:
        found = envelope.unpack(fields[b"h"])
    except (envelope.Malformed, RecursionError, KeyError):
        return ""
    priority = routing.priority_of(lane.decode())
    tag = uuid4().hex
    message = {
        "body": base64.b64encode(fields.get(b"b", b"")).decode(),
        "content-encoding": found.content_encoding,
        "content-type": found.content_type,
        "headers": {k: v for k, v in found.headers.items() if k != "aq"} | {"eta": None},
        "properties": {
            **found.properties, "body_encoding": "base64", "delivery_mode": 2,
            "delivery_tag": tag, "priority": priority,
            "delivery_info": {"exchange": "", "routing_key": queue},
        },
    }  # fmt: skip
    # Handed out again it is a new entry, which keeps only when it was born.
    born = fields.get(b"t") or entry_id.partition(b"-")[0]
    mark = _name(born, fields[b"h"], fields.get(b"b"))
    lists.push(queue, priority, orjson.dumps(message), mark)
    return mark
