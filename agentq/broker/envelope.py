"""A message on the wire: Celery's protocol 2, headers and body apart, both JSON.

A stream entry keeps kombu's message in two fields: `h` is everything but the body (headers,
properties, content type), `b` the body's bytes as they are: `[args, kwargs, embed]`. Header `aq`
is ours: `{"v": 1, "run": ..., "flow": ..., "node": ..., "path": [[join, index], ..]}`; of version 2
with `"blob"`: a reference to the argument, for which the body has null.

Of every version to come a worker of this one can tell that it is newer: `h` stays a JSON object
whose `headers.aq.v` is a number. It is looked at before anything else is. Builds before revision 3
of the functions, of which none was released, do not look: they run a step with a blob with null.
"""

from __future__ import annotations

from datetime import datetime
from types import NoneType
from typing import Any, NamedTuple

import orjson

VERSION = 1
"""Of what every build reads; a message with a blob is of the next, so that older builds park it."""
WITH_BLOB = 2
NEWEST = WITH_BLOB
"""The newest that this build reads."""
JSON = "application/json"
MAX_DEPTH = 64
_MARGIN = 16
_NO_LIMITS = (None, None)
_TYPES = {
    "retries": (int, NoneType),
    "expires": (str, NoneType),
    "timelimit": (list, NoneType),
    "compression": (str, NoneType),
    "root_id": (str, NoneType),
    "parent_id": (str, NoneType),
}
"""Headers that may be missing or null, and else are of this type; unions take twice as long."""


class Envelope(NamedTuple):
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


class Malformed(ValueError):  # noqa: N818 -- by situation, as in errors.py
    """The bytes are no message; the text says why, for the dead letter."""


class Newer(Malformed):
    """A message of a version that this build can not read; the text is what it lacks."""


def check_size(head: bytes, body: bytes, max_payload: int) -> None:
    """Refuse, before anybody reads it, what no producer of ours can have sent.

    With a margin: `broker.max_payload` may be lower here, or have been higher when it was sent.

    Raises:
        Malformed: it is larger.
    """
    for what, data in (("headers", head), ("body", body)):
        if len(data) > max_payload * _MARGIN:
            raise Malformed(
                f"{what}: {len(data)} bytes, far beyond broker.max_payload ({max_payload})"
            )


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
        Newer: it is of a version above `NEWEST`.
        Malformed: it is no JSON object, or what every message has is missing or of another type.
    """
    try:
        message = orjson.loads(data)
        headers = message["headers"]
        _check_version(headers.get("aq"))
        properties, task, task_id = message["properties"], headers["task"], headers["id"]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise Malformed(f"no message: {type(error).__name__}: {error}") from error
    if not isinstance(properties, dict):
        raise Malformed("properties are not an object")
    if not isinstance(task, str) or not isinstance(task_id, str):
        raise Malformed("task and id must be text")
    _check_types(headers, properties)
    _check_ours(headers.get("aq") or {})
    return Envelope(
        task,
        task_id,
        headers,
        properties,
        message.get("content-type") or JSON,
        message.get("content-encoding") or "utf-8",
    )


def task_of(data: bytes) -> str:
    """Return the task that field `h` names, "" where it can not be read."""
    try:
        return unpack(data).task
    except (Malformed, RecursionError):
        return ""


def _check_version(ours: Any) -> None:
    if not isinstance(ours, dict):
        return  # an ordinary task's; `_check_ours` refuses what is neither
    version = ours.get("v", VERSION)
    if type(version) is not int or version < 1:
        raise Malformed(f"header aq: version {version!r:.80}")
    if version > NEWEST:
        raise Newer(f"message version {version}")


def _check_types(headers: dict[str, Any], properties: dict[str, Any]) -> None:
    for name, kind in _TYPES.items():
        if not isinstance(headers.get(name), kind):
            raise Malformed(f"header {name}: {headers[name]!r:.80}")
    if len(headers.get("timelimit") or _NO_LIMITS) != len(_NO_LIMITS):
        raise Malformed("header timelimit must be [hard, soft]")
    try:
        if headers.get("expires"):
            datetime.fromisoformat(headers["expires"])
    except ValueError as error:
        raise Malformed(f"header expires: {error}") from error
    if not isinstance(properties.get("delivery_info") or {}, dict):
        raise Malformed("delivery_info is not an object")


def _check_ours(ours: Any) -> None:
    if not isinstance(ours, dict):
        raise Malformed("header aq is not an object")
    if "flow" not in ours:
        return
    place = (ours["flow"], ours.get("run"), ours.get("node"), ours.get("path"))
    match place:
        case (str(), str(), int(), list() as path) if all(_is_frame(frame) for frame in path):
            pass
        case _:
            raise Malformed(f"header aq names no place in a run: {place!r:.200}")


def _is_frame(frame: Any) -> bool:
    match frame:
        case [str(), int()]:
            return True
        case _:
            return False


def expired(headers: dict[str, Any]) -> str:
    """Return why a message is a dead letter whose `expires` has passed."""
    return f"expired: it was to start before {headers['expires']}"


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
