"""What stands in for a kombu producer in our apps: gathers messages, sends them in one call.

Celery opens one producer for a whole group or chord and hands it to each member's `apply_async`;
so everything published inside one `with` becomes visible whole or not at all. One message is an
`enqueue` (deduplicated by id, checked against the lane's cap), several are one `open`, very many
are staged in chunks and opened by one last call.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from contextvars import ContextVar, Token
from datetime import datetime
from hashlib import blake2b
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from agentq.broker import outbox
from agentq.broker.terms import Terms
from agentq.errors import PayloadTooLarge, QueueFull
from agentq.store import calls, effects
from agentq.store.effects import Effect, Message
from agentq.store.replication import unconfirmed

if TYPE_CHECKING:
    from agentq.settings import Settings
    from agentq.store.client import Store

CHUNK = 500
"""Members staged by one call: keeps it under 5 ms of the server."""

CHUNK_BYTES = 1 << 20

_active: ContextVar[Publisher | None] = ContextVar("agentq_publisher", default=None)


def active() -> Publisher | None:
    """Return the publisher whose `with` is open."""
    return _active.get()


def chunks(messages: Sequence[Message]) -> list[list[Message]]:
    """Split *messages* into what one `stage` takes: `CHUNK` of them or `CHUNK_BYTES`."""
    result: list[list[Message]] = [[]]
    size = 0
    for message in messages:
        weight = len(message.body) + len(message.headers)
        if result[-1] and (len(result[-1]) >= CHUNK or size + weight > CHUNK_BYTES):
            result.append([])
            size = 0
        result[-1].append(message)
        size += weight
    return result


class Publisher:
    """Gathers what one `with` publishes."""

    def __init__(self, *, store: Store, settings: Settings) -> None:
        """Keep the parts; the store connects when something is sent."""
        self._store = store
        self._settings = settings
        self._messages: list[tuple[Message, str]] = []
        self._retries: set[str] = set()
        self._effects: list[Effect] = []
        self._token: Token[Publisher | None] | None = None

    # What Celery asks of a producer and of its connection.
    serializer = None

    @property
    def connection(self) -> Self:
        """Return what stands in for the connection."""
        return self

    def _reraise_as_library_errors(self) -> nullcontext[None]:
        return nullcontext()

    def __enter__(self) -> Self:
        """Begin to gather."""
        self._token = _active.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Send what was gathered; after an exception nothing is sent."""
        if self._token is not None:
            _active.reset(self._token)
            self._token = None
        if kind is None:
            self._flush()

    def add(self, message: Message, dedupe_id: str, *, retry: bool = False) -> None:
        """Gather one message; a *retry* goes by the budget of its pool.

        Raises:
            PayloadTooLarge: its body is larger than `broker.max_payload`.
        """
        check_size(message, self._settings.broker.max_payload)
        self._messages.append((message, dedupe_id))
        if retry:
            self._retries.add(message.id)

    def effect(self, effect: Effect) -> None:
        """Gather an effect that belongs with the messages."""
        self._effects.append(effect)

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        extra, self._effects = self._effects, []
        if not messages and not extra:
            return
        plain = [message for message, _ in messages]
        if (box := outbox.sink()) is not None:
            box.effects += self._visible(plain, box.staged)
            box.effects += extra
        elif len(messages) == 1 and not extra:
            enqueue(self._store, Terms.of(self._settings), *messages[0])
        else:
            self._open(messages, extra)

    def _visible(self, messages: list[Message], staged: dict[str, list[Message]]) -> list[Effect]:
        """Return the effects that make *messages* visible; many of them go to *staged*."""
        small = len(messages) <= CHUNK and sum(len(m.body) for m in messages) <= CHUNK_BYTES
        box = outbox.sink()
        if small or (box is not None and box.whole):
            return [self._put(message) for message in messages]
        result = []
        by_lane = sorted(messages, key=lambda m: (m.pool, m.lane))
        for (pool, lane), members in groupby(by_lane, key=lambda m: (m.pool, m.lane)):
            group = uuid4().hex
            staged[group] = list(members)
            result.append(effects.open_group(group, pool, lane))
        return result

    def _put(self, message: Message) -> Effect:
        return (effects.again if message.id in self._retries else effects.put)(message)

    def _open(self, published: list[tuple[Message, str]], extra: list[Effect]) -> None:
        """Send several messages in one call; all of them or none, and the same ones once.

        Raises:
            QueueFull: the queue of the first of them has no room for all.
        """
        keys = self._store.keys
        messages = [message for message, _ in published]
        staged: dict[str, list[Message]] = {}
        visible = self._visible(messages, staged)
        for group, members in staged.items():
            stage(self._store, group, members)
        terms = Terms.of(self._settings)
        pool, lane = (messages[0].pool, messages[0].lane) if messages else ("", "")
        once = _id_of_all([dedupe_id for _, dedupe_id in published])
        admission = calls.Admission(
            once, terms.dedupe_ms, pool, lane, terms.max_length, terms.max_bytes
        )
        call = calls.open_staged(keys.prefix, admission, [*visible, *extra], count=len(messages))
        reply, confirmed = send(self._store, terms, call)
        if reply[0] != b"ok" and staged:
            self._store.command("UNLINK", *(keys.staged(group) for group in staged))
        if reply[0] == b"full":
            raise refused(pool, calls.full(reply))
        check_replicated(self._store, messages, confirmed=confirmed)


def _id_of_all(dedupe_ids: Sequence[str]) -> str:
    """Return what messages that are published together are known by."""
    if not dedupe_ids:
        return uuid4().hex
    return blake2b("\0".join(dedupe_ids).encode(), digest_size=16).hexdigest()


def check_size(message: Message, limit: int) -> None:
    """Do nothing for a message of at most *limit* bytes of arguments.

    Raises:
        PayloadTooLarge: it has more.
    """
    if len(message.body) > limit:
        raise PayloadTooLarge(
            f"message {message.id} carries {len(message.body)} bytes of arguments; "
            f"broker.max_payload is {limit}: pass a reference (a path, a key) instead"
        )


def enqueue(store: Store, terms: Terms, message: Message, dedupe_id: str) -> None:
    """Send one message; an id that was sent before is not sent again.

    Raises:
        QueueFull: its lane is at `broker.max_length` or `broker.max_bytes`, or the server is full.
        PayloadTooLarge: its body is larger than `broker.max_payload`.
        NotReplicated: `broker.durable` is ``replica``, and none has it.
        BrokerUnavailable: no answer in time, or a full server.
    """
    check_size(message, terms.max_payload)
    admission = calls.Admission(
        dedupe_id, terms.dedupe_ms, message.pool, message.lane, terms.max_length, terms.max_bytes
    )
    call = calls.enqueue(store.keys.prefix, admission, [effects.put(message)])
    reply, confirmed = send(store, terms, call)
    match calls.enqueued(reply):
        case calls.Full() as full:
            raise refused(message.pool, full)
        case calls.Accepted() | calls.Duplicate():
            check_replicated(store, [message], confirmed=confirmed)


def send(store: Store, terms: Terms, call: calls.Call) -> tuple[Any, bool]:
    """Send new work; return the answer and whether as many servers have it as *terms* ask for."""
    if not terms.replicated:
        return store.call(call), True
    (reply,), confirmed = store.replicated([call])
    if isinstance(reply, Exception):
        raise reply
    return reply, confirmed


def check_replicated(store: Store, messages: Sequence[Message], *, confirmed: bool) -> None:
    """Do nothing where *confirmed*.

    Raises:
        NotReplicated: the messages stand in the primary alone.
    """
    if not confirmed:
        ids = [message.id for message in messages]
        what = f"task {ids[0]} is" if len(ids) == 1 else f"{len(ids)} tasks are"
        raise unconfirmed(what, store.timeout, ids)


def refused(pool: str, full: calls.Full) -> QueueFull:
    """Return what a producer is told whose work was refused."""
    return QueueFull(
        pool,
        depth=full.depth,
        limit=full.limit,
        retry_after=full.retry_after,
        reason=full.reason,
    )


def dedupe_id(headers: dict[str, Any], task_id: str) -> str:
    """Return what a message is known by: a retry and a replacement keep their task's id."""
    return f"{task_id}:{headers.get('retries', 0)}:{headers.get('replaced_task_nesting', 0)}"


def due_ms(headers: dict[str, Any]) -> int:
    """Return when a message is due: 0 now, -n in n ms, else an instant."""
    if after := (headers.get("aq") or {}).get("after"):
        return -int(after)
    eta = headers.get("eta")
    return int(datetime.fromisoformat(eta).timestamp() * 1000) if eta else 0


def stage(store: Store, group: str, members: list[Message]) -> None:
    """Stage *members* under *group*, chunk by chunk."""
    offset = 0
    for chunk in chunks(members):
        offset = store.call(calls.stage(store.keys.prefix, group, offset, chunk, started=False))


def staging(prefix: str, staged: dict[str, list[Message]]) -> list[calls.Call]:
    """Return the calls that stage *staged*, in their order."""
    result: list[Any] = []
    for group, members in staged.items():
        offset = 0
        for chunk in chunks(members):
            result.append(calls.stage(prefix, group, offset, chunk, started=True))
            offset += len(chunk)
    return result
