"""How a stream entry becomes a kombu message: whatever its bytes are, this never raises.

entry --> Received   a message for Celery's consumer
      --> Exhausted  one whose worker died too often: fails without being run
      --> Dropped    ends at once: of an ended or expired run
      --> Unknown    of a version that this build can not read: handed back for one that can
      --> Unreadable for the dead letters
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any

from kombu import compression

from agentq.broker import envelope, serializer
from agentq.broker.envelope import Envelope, Malformed, Newer
from agentq.broker.terms import Terms
from agentq.store import effects

_REPR_BYTES = 256
_LIVE = 1
_PARTS = 3  # args, kwargs, embed


@dataclass(frozen=True, slots=True)
class Letter:
    """What a dead letter keeps."""

    id: str
    attempts: int
    headers: bytes
    body: bytes
    retries: int
    born_ms: int
    pool: str
    lane: str
    run: str
    join: str
    suspected: int = 0
    """How often its process died while it was not alone there."""

    def dead(self, reason: str) -> effects.Effect:
        """Return the effect that keeps it."""
        return effects.dead(
            reason, self.id, self.attempts, self.headers, self.body, retries=self.retries,
            born_ms=self.born_ms, pool=self.pool, lane=self.lane, run=self.run, join=self.join,
        )  # fmt: skip

    def followers(self, reason: str, keep_ms: int) -> list[effects.Effect]:
        """Return what it means for its fan-in or its run that it is unreadable."""
        outcome = serializer.dumps({"kind": "Malformed", "message": reason, "step": ""})
        if self.join:
            name, _, index = self.join.rpartition("|")
            return [effects.part(name, index, outcome)]
        return [effects.end(self.run, "failed", outcome, keep_ms)] if self.run else []


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


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message for a worker that knows more."""

    fence: Fence
    id: str
    lacking: str


Verdict = Received | Exhausted | Dropped | Unreadable | Unknown


def judge(entry: list[Any], *, pool: str, now_ms: int, terms: Terms) -> Verdict:
    """Return what an entry of `fetch` is, by the broker's clock and our *terms*."""
    lane, stream, entry_id, flat, live, deadline = entry
    fence = Fence(pool, _text(lane), _text(stream), _text(entry_id))
    fields = dict(zip(flat[::2], flat[1::2], strict=False))
    run = _text(fields.get(b"r", b""))
    attempts, retries = _count(fields.get(b"a")), _count(fields.get(b"n"))
    born = _count(fields.get(b"t")) or int(fence.entry.partition("-")[0])
    letter = Letter(
        _text(fields.get(b"i", b"")), attempts, fields.get(b"h", b""), fields.get(b"b", b""),
        retries, born, pool, fence.lane, run, _text(fields.get(b"j", b"")),
        _count(fields.get(b"s")),
    )  # fmt: skip
    if live != _LIVE or (deadline and now_ms > deadline):
        return Dropped(fence, run)
    try:
        envelope.check_size(letter.headers, letter.body, terms.max_payload)
        payload = _payload(envelope.unpack(letter.headers), fence, letter)
    except Newer as error:
        return Unknown(fence, letter.id, str(error))
    except (Malformed, RecursionError) as error:
        return Unreadable(fence, str(error), letter)
    if attempts >= terms.delivery_limit:
        return Exhausted(fence, payload, attempts)
    return Received(fence, payload)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _count(value: bytes | None) -> int:
    return int(value) if value and value.isdigit() else 0


def _payload(message: Envelope, fence: Fence, letter: Letter) -> dict[str, Any]:
    headers, body = message.headers, letter.body
    if method := headers.pop("compression", None):
        body = _decompressed(body, method)
    headers["retries"] = (headers.get("retries") or 0) + letter.retries
    headers["eta"] = None  # Redis decided that it is due
    decoded = None
    if message.content_type == envelope.JSON:
        decoded = _decoded(body)
        if not headers.get("argsrepr"):
            headers["argsrepr"] = _shown(body)
    info = {
        "exchange": "",
        "routing_key": fence.pool,
        "priority": message.properties.get("priority"),
        "redelivered": letter.attempts + letter.suspected > 0,
        "deaths": letter.attempts + letter.suspected,
        "taken": monotonic(),  # the children of a pool have the same clock
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
        "letter": letter,
    }


def _decompressed(body: bytes, method: Any) -> bytes:
    """Return the body that was packed; kombu would ack, and so lose, what it can not unpack."""
    try:
        return bytes(compression.decompress(body, method))
    except Exception as error:
        raise Malformed(f"body: {type(error).__name__}: {error}") from error


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
