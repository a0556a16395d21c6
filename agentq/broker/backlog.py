"""What a queue's streams hold that nobody has taken: counted, deleted."""

from __future__ import annotations

from typing import Any

from agentq.broker import routing
from agentq.store import calls
from agentq.store.client import Store
from agentq.store.keys import GROUP

_AT_ONCE = 500


def streams_of(store: Store, queue: str) -> list[str]:
    """Return the streams of a pool."""
    keys = store.keys
    return [
        key
        for lane in routing.LANES
        for key in (keys.returned(queue, lane), keys.stream(queue, lane))
    ]


def size(store: Store, queue: str) -> int:
    """Return how many messages wait: not those that a worker holds."""
    streams = streams_of(store, queue)
    batch: list[calls.Call] = [("XLEN", key) for key in streams]
    batch += [("XPENDING", key, GROUP) for key in streams]
    answers = store.pipeline(batch)
    held = sum(
        _pending(answer) for answer in answers[len(streams) :] if not isinstance(answer, Exception)
    )
    return max(0, sum(map(int, answers[: len(streams)])) - held)


def exists(store: Store, queue: str) -> bool:
    """Whether anything was ever sent to *queue*."""
    return bool(store.command("EXISTS", *streams_of(store, queue)))


def purge(store: Store, queue: str) -> int:
    """Delete what was never handed out, and return how much; what a worker holds is its own."""
    return sum(_purge_stream(store, key) for key in streams_of(store, queue))


def _purge_stream(store: Store, key: str) -> int:
    if not store.command("EXISTS", key):
        return 0
    after, count = b"(" + _last_delivered(store, key), 0
    while found := store.command("XRANGE", key, after, "+", "COUNT", _AT_ONCE):
        count += store.command("XDEL", key, *(entry[0] for entry in found))
    return count


def _last_delivered(store: Store, key: str) -> bytes:
    group: Any = store.command("XINFO", "GROUPS", key)[0]
    fields = group if isinstance(group, dict) else dict(zip(group[::2], group[1::2], strict=True))
    last = fields.get(b"last-delivered-id", fields.get("last-delivered-id"))
    return last if isinstance(last, bytes) else str(last).encode()


def _pending(answer: Any) -> int:
    return int(answer["pending"] if isinstance(answer, dict) else answer[0])
