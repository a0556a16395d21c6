"""A message on the wire: Celery's protocol 2, headers and body apart, both JSON.

A stream entry keeps kombu's message in two fields: `h` is everything but the body (headers,
properties, content type), `b` the body's bytes as they are: `[args, kwargs, embed]`. Header `aq`
is ours: `{"v": 1, "run": ..., "flow": ..., "node": ..., "path": [[join, index], ..]}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

VERSION = 1
JSON = "application/json"
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a delivery carries, checked as far as the worker relies on it."""

    task: str
    id: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    content_type: str
    content_encoding: str

    @property
    def ours(self) -> dict[str, Any]:
        """Return header `aq`, empty for an ordinary task."""
        return self.headers.get("aq") or {}


class Malformed(ValueError):
    """The bytes are no message; the text says why, for the dead letter."""


def pack(
    headers: dict[str, Any],
    properties: dict[str, Any],
    content_type: str = JSON,
    content_encoding: str = "utf-8",
) -> bytes:
    """Return the bytes of field `h`."""
    return orjson.dumps(
        {
            "headers": headers,
            "properties": properties,
            "content-type": content_type,
            "content-encoding": content_encoding,
        },
        default=_header_default,
        option=orjson.OPT_NON_STR_KEYS,
    )


def _header_default(value: Any) -> Any:
    # Stamps may hold sets; whatever else a header holds must not stop a publish.
    return list(value) if isinstance(value, set | frozenset | tuple) else str(value)


def unpack(data: bytes) -> Envelope:
    """Read field `h`.

    Raises:
        Malformed: it is no JSON object, or what every message has is missing or of another type.
    """
    try:
        message = orjson.loads(data)
        headers, properties = message["headers"], message["properties"]
        task, task_id = headers["task"], headers["id"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise Malformed(f"no message: {type(error).__name__}: {error}") from error
    if not isinstance(properties, dict):
        raise Malformed("properties are not an object")
    if not isinstance(task, str) or not isinstance(task_id, str):
        raise Malformed("task and id must be text")
    if not isinstance(headers.get("aq") or {}, dict):
        raise Malformed("header aq is not an object")
    return Envelope(
        task,
        task_id,
        headers,
        properties,
        message.get("content-type") or JSON,
        message.get("content-encoding") or "utf-8",
    )


def step_headers(
    task: str, task_id: str, *, ours: dict[str, Any], parent: str | None, root: str
) -> dict[str, Any]:
    """Return the protocol-2 headers of a step's message, without repr of arguments."""
    return {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": root,
        "parent_id": parent,
        "argsrepr": "",
        "kwargsrepr": "{}",
        "origin": "agentq",
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
        "aq": ours,
    }


def step_properties(task_id: str, pool: str, priority: int) -> dict[str, Any]:
    """Return the properties of a step's message."""
    return {
        "correlation_id": task_id,
        "reply_to": "",
        "priority": priority,
        "delivery_info": {"exchange": "", "routing_key": pool},
    }


def step_body(argument: bytes, chord: bytes = b"null") -> bytes:
    """Return the body of a step's message; *argument* and *chord* are JSON."""
    return (
        b"[[" + argument + b'],{},{"callbacks":null,"errbacks":null,"chain":null,"chord":'
        + chord + b"}]"
    )  # fmt: skip
