"""A cell as JSON and back: every key with its type, its value and whether it has a time to live.

Bytes are text where they are UTF-8, else `{"bytes": ...}` with one character for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentq.store.client import Store
from agentq.store.keys import GROUP

TTL_MS = 600_000
_UNREAD_LATER_MS = 1_000_000


def shown(value: Any) -> Any:
    """Return *value* as JSON has it."""
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"bytes": value.decode("latin-1")}
    return value


def read(value: Any) -> Any:
    """Return what `shown` showed; text as bytes."""
    if isinstance(value, list):
        return [read(one) for one in value]
    if isinstance(value, dict):
        return value["bytes"].encode("latin-1")
    return value.encode() if isinstance(value, str) else value


def dumped(store: Store) -> dict[str, Any]:
    """Return every key of a cell, without the prefix."""
    prefix = store.keys.prefix
    keys = sorted(key.decode() for key in store.client.scan_iter(count=1000, match=f"{prefix}*"))
    return {key.removeprefix(prefix): _dumped(store.client, key) for key in keys}


def _dumped(client: Any, key: str) -> dict[str, Any]:
    kind = client.type(key).decode()
    value: Any
    match kind:
        case "string":
            value = client.get(key)
        case "list":
            value = client.lrange(key, 0, -1)
        case "set":
            value = sorted(client.smembers(key))
        case "zset":
            value = [
                [member, int(score)] for member, score in client.zrange(key, 0, -1, withscores=True)
            ]
        case "hash":
            value = [list(pair) for pair in sorted(client.hgetall(key).items())]
        case "stream":
            value = [[id_, [part for pair in fields.items() for part in pair]]
                     for id_, fields in client.xrange(key)]  # fmt: skip
        case _:
            raise AssertionError(kind)
    found = {"type": kind, "ttl": client.pttl(key) > 0, "value": shown(value)}
    if kind == "stream" and client.xinfo_groups(key):
        found["held"] = [
            [shown(one["message_id"]), shown(one["consumer"])]
            for one in client.xpending_range(key, GROUP, "-", "+", 100)
        ]
    return found


def restore(store: Store, cells: Iterable[dict[str, Any]]) -> None:
    """Put recorded cells together into one.

    In a stream each gets ids of its own; what a worker held comes before what nobody had read, so
    that one mark tells both apart.
    """
    every = list(enumerate(cells))
    for later_ms, cell in every:
        for name, key in cell.items():
            if key["type"] == "stream":
                _restore_held(store.client, f"{store.keys.prefix}{name}", key, later_ms)
    for later_ms, cell in every:
        for name, key in cell.items():
            _restore(store.client, f"{store.keys.prefix}{name}", key, later_ms + _UNREAD_LATER_MS)


def _restore_held(client: Any, key: str, found: dict[str, Any], later_ms: int) -> None:
    if "held" not in found:
        return
    if not client.exists(key) or not client.xinfo_groups(key):
        client.xgroup_create(key, GROUP, "0", mkstream=True)
    fields = dict(map(tuple, found["value"]))
    for id_, consumer in found["held"]:
        new = _later(id_, later_ms)
        client.execute_command("XADD", key, new, *read(fields[id_]))
        client.xgroup_setid(key, GROUP, new)
        client.xclaim(key, GROUP, consumer, 0, [new], force=True, justid=True)


def _restore(client: Any, key: str, found: dict[str, Any], later_ms: int) -> None:
    value = read(found["value"])
    match found["type"]:
        case "string":
            client.set(key, value)
        case "list" if value:
            client.rpush(key, *value)
        case "set":
            client.sadd(key, *value)
        case "zset":
            client.zadd(key, dict(map(tuple, value)))
        case "hash":
            client.hset(key, mapping=dict(map(tuple, value)))
        case "stream":
            _restore_unread(client, key, found, later_ms)
    if found["ttl"]:
        client.pexpire(key, TTL_MS)


def _restore_unread(client: Any, key: str, found: dict[str, Any], later_ms: int) -> None:
    held = {id_ for id_, _ in found.get("held", ())}
    for id_, fields in found["value"]:
        if id_ not in held:
            client.execute_command("XADD", key, _later(id_, later_ms), *read(fields))


def _later(id_: str, later_ms: int) -> str:
    ms, _, sequence = id_.partition("-")
    return f"{int(ms) + later_ms}-{sequence}"
