"""How a chord's body gets its header's results: a reference in its message, read when it starts.

The reference stands where the list would: `{"$join": id}`. The outcomes are kept by index in
Redis; no worker reads them all before the body's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery.exceptions import ChordError

from agentq.broker import serializer

MARK = "$join"
MARK_BYTES = b'{"$join":'
NESTED = "nested"


def reference(join_id: str, *, nested: bool) -> dict[str, Any]:
    """Return what stands for the results; *nested*: the header holds groups, keep their shape."""
    return {MARK: join_id, NESTED: True} if nested else {MARK: join_id}


def referenced(args: Sequence[Any]) -> tuple[int, dict[str, Any]] | None:
    """Return the place and the reference among *args*."""
    for place, value in enumerate(args):
        if isinstance(value, dict) and MARK in value:
            return place, value
    return None


def read_outcomes(reply: dict[bytes, bytes] | Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the outcomes of an HGETALL in the members' order."""
    if not isinstance(reply, dict):
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
    ordered = sorted(reply, key=_order)
    return [serializer.loads(reply[index]) for index in ordered]


def _order(index: bytes) -> tuple[int, bytes]:
    # Members of odd canvases carry their task's id for an index: behind the numbered ones.
    return (int(index), b"") if index.isdigit() else (1 << 62, index)


def values(outcomes: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the results for an ordinary chord's body.

    Raises:
        ChordError: a header task failed; Celery's rule is that the body then fails.
    """
    for outcome in outcomes:
        if "value" not in outcome:
            task_id = outcome.get("task", "")
            raise ChordError(f"Dependency {task_id} raised {outcome['kind']}({outcome['message']!r})")
    return [outcome["value"] for outcome in outcomes]
