"""How a stream entry becomes a kombu message: whatever its bytes are, this never raises.

entry --> Received   a message for Celery's consumer
      --> Exhausted  one whose worker died too often: fails without being run
      --> Dropped    ends at once: of an ended or expired run
      --> Unreadable for the dead letters
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentq.broker import envelope, serializer
from agentq.broker.envelope import Envelope, Malformed

_REPR_BYTES = 256
_LIVE = 1
_PARTS = 3  # args, kwargs, embed


Letter = tuple[str, int, bytes, bytes]
"""What a dead letter keeps: task id, attempts, headers, body."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Where a delivery came from; its text is kombu's delivery tag."""

    pool: str
    lane: str
    stream: str
    entry: str

    @property
    def tag(self) -> str:
        """Return the delivery tag."""
        return f"{self.stream}|{self.entry}"

    @classmethod
    def of(cls, tag: str) -> Fence | None:
        """Return what *tag* names; None: a message that is in no stream (fan-out, replies)."""
        stream, _, entry = tag.rpartition("|")
        if not stream:
            return None
        _, pool, lane = stream.rsplit(":", 2)
        return cls(pool, lane, stream, entry)


@dataclass(frozen=True, slots=True)
class Received:
    """A message for Celery's consumer."""

    fence: Fence
    payload: dict[str, Any]
    """As kombu's virtual channel takes it, with `decoded`, the body's values, and `letter`, what
    `bury` takes.
    """


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A message that is given up."""

    fence: Fence
    payload: dict[str, Any]
    attempts: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A message that nobody waits for any more."""

    fence: Fence
    run: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes that are no message."""

    fence: Fence
    reason: str
    letter: Letter
    run: str
    join: str
    """Of which fan-in it is a member, `<join>|<index>`, or empty."""


Verdict = Received | Exhausted | Dropped | Unreadable


def judge(entry: list[Any], *, pool: str, now_ms: int, limit: int) -> Verdict:
    """Return what an entry of `fetch` is; *limit*: attempts after which it is given up."""
    lane, stream, entry_id, flat, live, deadline = entry
    fence = Fence(pool, _text(lane), _text(stream), _text(entry_id))
    fields = dict(zip(flat[::2], flat[1::2], strict=False))
    run = _text(fields.get(b"r", b""))
    head, body = fields.get(b"h", b""), fields.get(b"b", b"")
    attempts = _count(fields.get(b"a"))
    if live != _LIVE or (deadline and now_ms > deadline):
        return Dropped(fence, run)
    try:
        message = envelope.unpack(head)
        payload = _payload(message, head, body, fence, attempts, _count(fields.get(b"n")))
    except (Malformed, RecursionError) as error:
        task_id = _text(fields.get(b"i", b""))
        join = _text(fields.get(b"j", b""))
        return Unreadable(fence, str(error), (task_id, attempts, head, body), run, join)
    if attempts >= limit:
        return Exhausted(fence, payload, attempts)
    return Received(fence, payload)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _count(value: bytes | None) -> int:
    return int(value) if value and value.isdigit() else 0


def _payload(
    message: Envelope, head: bytes, body: bytes, fence: Fence, attempts: int, retries: int
) -> dict[str, Any]:
    headers = message.headers
    headers["retries"] = (headers.get("retries") or 0) + retries
    headers["eta"] = None  # Redis decided that it is due
    decoded = None
    if message.content_type == envelope.JSON and not headers.get("compression"):
        decoded = _decoded(body)
        if not headers.get("argsrepr"):
            headers["argsrepr"] = _shown(body)
    info = {
        "exchange": "",
        "routing_key": fence.pool,
        "priority": message.properties.get("priority"),
        "redelivered": attempts > 0,
    }
    return {
        "body": body,
        "headers": headers,
        "properties": {
            **message.properties,
            "delivery_tag": fence.tag,
            "delivery_info": info,
            "body_encoding": None,
        },
        "content-type": message.content_type,
        "content-encoding": message.content_encoding,
        "decoded": decoded,
        "letter": (message.id, attempts, head, body),
    }


def _decoded(body: bytes) -> list[Any]:
    """Return args, kwargs and embed, checked: Celery's consumer would die of a bad one."""
    try:
        value = serializer.loads(body)
    except Exception as error:
        raise Malformed(f"body: {type(error).__name__}: {error}") from error
    if not isinstance(value, list) or len(value) != _PARTS:
        raise Malformed("body: not [args, kwargs, embed]")
    args, kwargs, embed = value
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise Malformed("body: args must be a list and kwargs an object")
    if not isinstance(embed, dict | None):
        raise Malformed("body: embed must be an object")
    return value


def _shown(body: bytes) -> str:
    """Return the arguments as the body's text has them: nobody pays for a repr nobody reads."""
    text = body[1:_REPR_BYTES].decode("utf-8", "replace")
    end = text.find("],{")
    shown = text[1:end] if end > 0 else f"{text[1:]}..."
    return f"({shown})"
