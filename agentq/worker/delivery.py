"""One hand-over as the worker holds it, and how a stream entry becomes one.

    entry --> Delivery    a message for a task that this worker has
          --> Settled     it can be ended at once: malformed, of an ended run, expired
          --> Unknown     this worker lacks the task or the flow: handed back for one that has it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from kombu import compression, serialization

from agentq.broker import envelope, serializer
from agentq.broker.envelope import Envelope, Malformed
from agentq.broker.outbox import Outbox
from agentq.store import effects
from agentq.timing.deadline import NEVER, Deadline

if TYPE_CHECKING:
    from agentq.broker.task import Task

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
    body: bytes
    attempts: int
    """Hand-overs that ended with the worker's death."""
    retries: int
    """Hand-overs that ended with an exception."""
    born_ms: int
    deadline: Deadline = NEVER
    outbox: Outbox = field(default_factory=Outbox)

    @property
    def key(self) -> bytes:
        """Return what tells it from every other delivery: entry ids repeat between streams."""
        return self.stream + b"|" + self.entry

    @property
    def attempt(self) -> int:
        """Return which attempt this is, 1 the first."""
        return self.attempts + self.retries + 1

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
    why: str


Verdict = Delivery | Settled | Unknown


def judge(
    entry: list[Any], *, pool: str, tasks: Mapping[str, Task], flows: Mapping[str, Any]
) -> Verdict:
    """Return what a fetched entry is; never raises, whatever its bytes are."""
    lane, stream, entry_id, flat, live, deadline = entry
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    head, body = fields.get(b"h", b""), fields.get(b"b", b"")
    run = fields.get(b"r", b"").decode(errors="replace")
    if live != LIVE:
        return Settled(stream, entry_id, run, [], "its run has ended")
    try:
        message = envelope.unpack(head)
    except (Malformed, RecursionError) as error:
        return _dead(stream, entry_id, run, fields, str(error))
    task = tasks.get(message.task)
    name = lane.decode()
    if task is None:
        return Unknown(f"{pool}:{name}", stream, entry_id, f"no task {message.task!r} here")
    flow = message.ours.get("flow")
    if flow is not None and flow not in flows:
        return Unknown(f"{pool}:{name}", stream, entry_id, f"no flow {flow!r} here")
    born = int(fields.get(b"t", 0)) or int(entry_id.partition(b"-")[0])
    return Delivery(
        task, message, pool, name, stream, entry_id, message.id, run, body,
        int(fields.get(b"a", 0)), int(fields.get(b"n", 0)), born, Deadline(deadline),
    )  # fmt: skip


def _dead(
    stream: bytes, entry: bytes, run: str, fields: dict[bytes, bytes], why: str
) -> Settled:
    task_id = fields.get(b"i", b"").decode(errors="replace")
    attempts = int(fields.get(b"a", 0)) if fields.get(b"a", b"0").isdigit() else 0
    effect = effects.dead(
        why, task_id, attempts, fields.get(b"h", b"")[:65536], fields.get(b"b", b"")
    )
    return Settled(stream, entry, run, [effect], why)


def dead_letter(delivery: Delivery, why: str) -> effects.Effect:
    """Return the effect that keeps a delivery for a human."""
    head = orjson.dumps(
        {"headers": delivery.envelope.headers, "properties": delivery.envelope.properties},
        default=str,
    )
    return effects.dead(why, delivery.id, delivery.attempts, head, delivery.body)
