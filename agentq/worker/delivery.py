"""One hand-over as the worker holds it, and how a stream entry becomes one.

What an entry can be::

    entry --> Delivery    a message for a task that this worker has
          --> Settled     it can be ended at once: malformed, of an ended run, expired
          --> Unknown     this worker lacks the task or the flow, or can not read messages of that
                          version: handed back for one that has it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kombu import compression, serialization

from agentq.broker import envelope, serializer
from agentq.broker.envelope import Envelope, Malformed, Newer
from agentq.broker.outbox import Outbox
from agentq.runs.record import RunState
from agentq.store import effects
from agentq.timing.deadline import NEVER, Deadline

if TYPE_CHECKING:
    from agentq.broker.task import Task
    from agentq.flows.flow import Flow

LIVE = 1


@dataclass(slots=True)
class Delivery:
    """A message, the task it is for, and the fence under which its end is written."""

    task: Task
    envelope: Envelope
    pool: str
    lane: str
    stream: bytes
    entry: bytes
    """The fence: new at every hand-over."""
    id: str
    run: str
    join: str
    """`<join>|<index>` of the fan-in it is a member of, or empty."""
    body: bytes
    attempts: int
    """Hand-overs that ended with its death while it was alone: what is charged against it."""
    retries: int
    """Hand-overs that ended with an exception."""
    born_ms: int
    deadline: Deadline = NEVER
    suspected: int = 0
    """Hand-overs that ended with the death of a process in which it was not alone."""
    outbox: Outbox = field(default_factory=Outbox)
    key: bytes = field(init=False)
    """What tells it from every other delivery: entry ids repeat between streams."""

    def __post_init__(self) -> None:
        """Put the key together once: it is asked for seven times."""
        self.key = self.stream + b"|" + self.entry

    @property
    def ready_ms(self) -> int:
        """Return when it entered its lane: the Unix ms that its entry id begins with."""
        return int(self.entry.partition(b"-")[0])

    @property
    def attempt(self) -> int:
        """Return which attempt this is, 1 the first."""
        return self.attempts + self.suspected + self.retries + 1

    @property
    def redelivered(self) -> bool:
        """Whether a process died that held it."""
        return self.attempts + self.suspected > 0

    def arguments(self) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        """Return args, kwargs and embed.

        Raises:
            Malformed: the body is not what protocol 2 promises.
        """
        try:
            args, kwargs, embed = self._loads()
        except Malformed:
            raise
        except Exception as error:
            raise Malformed(f"body: {type(error).__name__}: {error}") from error
        if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
            raise Malformed("body: args must be a list and kwargs an object")
        if not isinstance(embed, dict | None):
            raise Malformed("body: embed must be an object")
        return list(args), kwargs, embed or {}

    def _loads(self) -> Any:
        data: Any = self.body
        if method := self.envelope.headers.get("compression"):
            data = compression.decompress(data, method)
        if self.envelope.content_type == envelope.JSON:
            return serializer.loads(data)
        return serialization.loads(
            data,
            self.envelope.content_type,
            self.envelope.content_encoding,
            accept={envelope.JSON},  # never pickle: a message must not run code by being read
        )


@dataclass(frozen=True, slots=True)
class Settled:
    """An entry that ends at once, with these effects."""

    stream: bytes
    entry: bytes
    run: str
    effects: list[effects.Effect]
    why: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """An entry for a worker that knows more."""

    lane: str
    stream: bytes
    entry: bytes
    id: bytes
    lacking: str
    """What is not here, as `agentq status` shows it."""


Verdict = Delivery | Settled | Unknown


def judge(
    entry: list[Any], *, pool: str, tasks: Mapping[str, Task], flows: Mapping[str, Flow],
    keep_ms: int, max_payload: int,
) -> Verdict:  # fmt: skip
    """Return what a fetched entry is; never raises, whatever its bytes are.

    *keep_ms*: how long a run is kept that ends because its message is malformed; *max_payload*:
    most bytes that producers send.
    """
    lane, stream, entry_id, flat, live, deadline = entry
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    head, body = fields.get(b"h", b""), fields.get(b"b", b"")
    run = fields.get(b"r", b"").decode(errors="replace")
    join = fields.get(b"j", b"").decode(errors="replace")
    attempts = _count(fields.get(b"a"))
    if live != LIVE:
        return Settled(stream, entry_id, run, [], "its run has ended")
    id_, name = fields.get(b"i", b""), lane.decode()
    try:
        envelope.check_size(head, body, max_payload)
        message = envelope.unpack(head)
    except Newer as error:
        return Unknown(f"{pool}:{name}", stream, entry_id, id_, str(error))
    except (Malformed, RecursionError) as error:
        task_id = id_.decode(errors="replace")
        letter = effects.dead(
            str(error), task_id, attempts, head, body, retries=_count(fields.get(b"n")),
            born_ms=_born(fields, entry_id), pool=pool, lane=name, run=run, join=join,
        )  # fmt: skip
        ended = [letter, *_ends(run, join, str(error), attempts, keep_ms)]
        return Settled(stream, entry_id, run, ended, str(error))
    if lacking := _lacking(message, tasks, flows):
        return Unknown(f"{pool}:{name}", stream, entry_id, id_, lacking)
    born = _born(fields, entry_id)
    return Delivery(
        tasks[message.task], message, pool, name, stream, entry_id, message.id, run, join, body,
        attempts, _count(fields.get(b"n")), born, Deadline(deadline) if deadline else NEVER,
        _count(fields.get(b"s")),
    )  # fmt: skip


def _lacking(message: Envelope, tasks: Mapping[str, Task], flows: Mapping[str, Flow]) -> str:
    """Return what of a message's code is not here, "" where all is."""
    if message.task not in tasks:
        return f"task {message.task}"
    flow = message.ours.get("flow")
    if flow is None:
        return ""
    if flow not in flows:
        return f"flow {flow}"
    if not flows[flow].graph.runs(message.ours["node"], message.task):
        return f"flow {flow} with {message.task} at that place"
    return ""


def _count(value: bytes | None) -> int:
    return int(value) if value and value.isdigit() else 0


def _born(fields: dict[bytes, bytes], entry_id: bytes) -> int:
    """Return when a message was first enqueued, ms."""
    return _count(fields.get(b"t")) or int(entry_id.partition(b"-")[0])


def _ends(
    run: str, join: str, why: str, attempts: int, keep_ms: int, kind: str = Malformed.__name__
) -> list[effects.Effect]:
    """Return what a message that will never run means for its fan-in or its run."""
    error = serializer.dumps({"kind": kind, "message": why, "step": "", "attempts": attempts + 1})
    name, bar, index = join.rpartition("|")
    if bar:
        return [effects.part(name, index, error)]
    return [effects.end(run, RunState.FAILED, error, keep_ms)] if run else []


def buried(delivery: Delivery, error: Exception, keep_ms: int) -> list[effects.Effect]:
    """Return the effects that keep an unreadable delivery for a human and let its run go on."""
    why, kind = str(error), type(error).__name__
    ends = _ends(delivery.run, delivery.join, why, delivery.attempts, keep_ms, kind)
    return [dead_letter(delivery, why), *ends]


def dead_letter(delivery: Delivery, why: str) -> effects.Effect:
    """Return the effect that keeps a delivery for a human."""
    message = delivery.envelope
    head = envelope.pack(
        message.headers, message.properties, message.content_type, message.content_encoding
    )
    return effects.dead(
        why, delivery.id, delivery.attempts, head, delivery.body, retries=delivery.retries,
        born_ms=delivery.born_ms, pool=delivery.pool, lane=delivery.lane, run=delivery.run,
        join=delivery.join,
    )  # fmt: skip
