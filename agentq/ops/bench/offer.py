"""Puts tasks into a queue as a producer does, with no bound: a benchmark fills what it likes."""

from __future__ import annotations

from uuid import uuid4

import orjson

from agentq.broker import envelope
from agentq.store import calls, effects
from agentq.store.client import Store
from agentq.store.effects import Message

_CAP = 1 << 40
_BYTES_AT_A_TIME = 1 << 20


def offer(
    store: Store, task: str, argument: object = None, *, count: int = 1, pool: str = "shared"
) -> None:
    """Enqueue *count* of *task*, each with *argument*, into the normal lane of *pool*."""
    admission = calls.Admission("", 0, pool, "normal", _CAP, _CAP)
    body = orjson.dumps([[argument], {}, None])
    most = min(500, max(1, _BYTES_AT_A_TIME // len(body)))
    for start in range(0, count, most):
        work = [effects.put(_message(task, body, pool)) for _ in range(min(most, count - start))]
        store.call(calls.enqueue(store.keys.prefix, admission, work))


def _message(task: str, body: bytes, pool: str) -> Message:
    task_id = uuid4().hex
    head = envelope.pack({"task": task, "id": task_id}, {}, envelope.JSON, "utf-8")
    return Message(pool, "normal", 0, task_id, "", "", head, body)
