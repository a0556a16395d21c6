"""What a state change brings about, as the flat argument lists that the functions take.

The opcodes and their order are those at the head of `functions/_effects.lua`. Each builder returns
a tuple; callers chain them. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Arg = str | bytes | int
Effect = tuple[Arg, ...]


class Message(NamedTuple):
    """One message on its way to a queue; field order is the functions' order."""

    pool: str
    lane: str
    due_ms: int
    """When it may be handed out on Redis' clock: 0 now, -n in n ms, else an instant."""
    id: str
    run: str
    join: str
    """`<join>|<index>` of the fan-in it is a member of, or empty."""
    headers: bytes
    """kombu's message without its body, JSON."""
    body: bytes


def put(message: Message) -> Effect:
    """Enqueue one message."""
    return ("put", *message)


def again(message: Message) -> Effect:
    """Enqueue one message that is a retry: not before the budget of its pool allows."""
    return ("again", *message)


def join(  # noqa: PLR0913 -- the effect's arguments, one for one
    join_id: str,
    *,
    width: int,
    at_once: int,
    ttl_ms: int,
    run: str,
    body: Sequence[Message],
    members: Iterable[Message] | str,
    staged_bytes: int = 0,
) -> Effect:
    """Open a fan-in of *width*.

    *members*: themselves, or the id they were staged under, together *staged_bytes* of payload.
    """
    flat: list[Arg] = ["join", join_id, width, at_once, ttl_ms, run, len(body)]
    if isinstance(members, str):
        flat.append(f"staged:{staged_bytes}:{members}")
        for message in body:
            flat.extend(message)
        return tuple(flat)
    listed = list(members)
    flat.append(len(listed))
    for message in (*body, *listed):
        flat.extend(message)
    return tuple(flat)


def open_group(group_id: str, pool: str, lane: str) -> Effect:
    """Make a staged group visible in one lane."""
    return ("open", group_id, pool, lane)


def width(join_id: str, count: int, *, more: bool = False) -> Effect:
    """Say how many outcomes a fan-in waits for; *more*: how many beyond those said before."""
    return ("width", join_id, count, int(more))


def part(join_id: str, index: int | str, outcome: bytes) -> Effect:
    """Count one member's outcome."""
    return ("part", join_id, index, outcome)


def forget(join_id: str) -> Effect:
    """Drop the outcomes of a fan-in whose body has ended."""
    return ("forget", join_id)


def meta(task_id: str, ttl_ms: int, document: bytes) -> Effect:
    """Store and announce a Celery result document."""
    return ("meta", task_id, ttl_ms, document)


def event(run: str, kind: str, data: bytes) -> Effect:
    """Append to a run's events."""
    return ("event", run, kind, data)


def spend(size: int) -> Effect:
    """Charge *size* bytes, kept outside of Redis, to the budget of the delivery's run."""
    return ("spend", size)


def end(run: str, state: str, data: bytes, keep_ms: int) -> Effect:
    """End a run; the first end stands."""
    return ("end", run, state, data, keep_ms)


def dead(  # noqa: PLR0913 -- the effect's arguments, one for one
    reason: str,
    task_id: str,
    attempts: int,
    headers: bytes,
    body: bytes,
    *,
    retries: int = 0,
    born_ms: int = 0,
    pool: str = "",
    lane: str = "",
    run: str = "",
    join: str = "",
) -> Effect:
    """Keep a dead letter; without *pool* and *lane* it can be read but not replayed."""
    return (
        "dead", reason, task_id, attempts, headers, body, retries, born_ms, pool, lane, run, join,
    )  # fmt: skip
