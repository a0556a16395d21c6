"""How a chord's body gets its header's results: a reference in its message, read when it starts.

The reference stands where the list would: `{"$join": id}`. The outcomes are kept by index in
Redis; no worker reads them all before the body's does. The body's header `aq` names the join too:
only what it names is a reference, the like among users' data is data; and an immutable body, which
has no place for the list, must still not run where the header failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import orjson
from celery.exceptions import ChordError
from celery.result import GroupResult

from agentq.broker import envelope, serializer
from agentq.broker.outbox import Outbox
from agentq.errors import BlobMissing
from agentq.store import effects

MARK = "$join"
BLOB = "blob"
"""In place of an outcome's `value`: the reference to it."""
NESTED = "nested"
_UNKNOWN_WIDTH = -1

Rebuild = Callable[[Any], BaseException | None]


def reference(join_id: str, *, nested: bool) -> dict[str, Any]:
    """Return what stands for the results; *nested*: the header holds groups, keep their shape."""
    return {MARK: join_id, NESTED: True} if nested else {MARK: join_id}


def referenced(args: Sequence[Any], join_id: str) -> tuple[int, dict[str, Any]] | None:
    """Return the place and the reference to *join_id*, which the message's header names."""
    for place, value in enumerate(args):
        if isinstance(value, dict) and value.get(MARK) == join_id:
            return place, value
    return None


def refers(reference: str) -> bytes:
    """Return the outcome, as JSON, of a member whose value is a blob."""
    return orjson.dumps({BLOB: reference})


def opening(join_id: str, ttl_ms: int, box: Outbox) -> tuple[effects.Effect, list[effects.Effect]]:
    """Turn the messages of a published body into the join's body.

    Returns the effect that opens the join, and those that go before it (a body that is a chord
    opens its own join).
    """
    puts = [cast("tuple[Any, ...]", effect[1:]) for effect in box.effects if effect[0] == "put"]
    body = [effects.Message(*put) for put in puts]
    followers = [effect for effect in box.effects if effect[0] != "put"]
    named = [_naming(message, join_id, sole=len(body) == 1) for message in body]
    opened = effects.join(
        join_id, width=_UNKNOWN_WIDTH, at_once=0, ttl_ms=ttl_ms, run="", body=named, members=()
    )
    return opened, followers


def _naming(message: effects.Message, join_id: str, *, sole: bool) -> effects.Message:
    head = orjson.loads(message.headers)
    ours = head["headers"].get("aq") or {}
    ours = {"v": envelope.VERSION, **ours, "join": join_id, "sole": sole}
    head["headers"]["aq"] = ours
    return message._replace(headers=orjson.dumps(head))


def index_of(place: int | None, task_id: str) -> str:
    """Return under which index a header task's outcome is kept.

    Celery's place alone will not do: the members of a group at the end of a header's chain count
    from 0 again. Those without a place come last.
    """
    return f"{'' if place is None else place}:{task_id}"


class Outcomes(list[dict[str, Any]]):
    """The outcomes of a fan-in as they came: told from a list that a step returned by its type."""

    def in_blobs(self) -> list[dict[str, Any]]:
        """Return those whose value is yet to be read."""
        return [outcome for outcome in self if BLOB in outcome]


def fill(outcome: dict[str, Any], found: bytes | BlobMissing) -> None:
    """Put what its blob holds into *outcome*; one that is lost is a member that failed."""
    del outcome[BLOB]
    if isinstance(found, BlobMissing):
        outcome |= {"kind": type(found).__name__, "message": str(found)}
    else:
        outcome["value"] = serializer.loads(found)


def read_outcomes(reply: Mapping[bytes, bytes] | Sequence[bytes]) -> Outcomes:
    """Return the outcomes of an HGETALL in the members' order."""
    if not isinstance(reply, Mapping):
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
    ordered = sorted(reply, key=_order)
    return Outcomes(serializer.loads(reply[index]) for index in ordered)


def _order(index: bytes) -> tuple[int, bytes]:
    place, _, task_id = index.partition(b":")
    return (int(place) if place.isdigit() else 1 << 62, task_id)


def by_task(reply: Mapping[bytes, bytes] | Sequence[bytes]) -> dict[str, Any]:
    """Return the results of an HGETALL by the id of the task that gave them."""
    if not isinstance(reply, Mapping):
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
    return {
        index.partition(b":")[2].decode(): serializer.loads(outcome).get("value")
        for index, outcome in reply.items()
    }


def shaped(header: GroupResult, results: Mapping[str, Any]) -> list[Any]:
    """Return *results* in the shape of a header that holds groups."""
    return [
        shaped(member, results) if isinstance(member, GroupResult) else results.get(member.id)
        for member in header.results
    ]


def values(outcomes: Sequence[dict[str, Any]], rebuild: Rebuild | None = None) -> list[Any]:
    """Return the results for an ordinary chord's body.

    Args:
        outcomes: as `read_outcomes` gives them.
        rebuild: makes an exception of a stored one, for the cause of the `ChordError`.

    Raises:
        ChordError: a header task failed; Celery's rule is that the body then fails.
    """
    for outcome in outcomes:
        if "value" not in outcome:
            task_id = outcome.get("task", "")
            shown = outcome.get("shown") or f"{outcome['kind']}({outcome['message']!r})"
            error = ChordError(f"Dependency {task_id} raised {shown}")
            cause = rebuild(outcome["error"]) if rebuild and "error" in outcome else None
            raise error from cause
    return [outcome["value"] for outcome in outcomes]
