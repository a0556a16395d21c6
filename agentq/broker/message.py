"""The two forms of a message in kombu's hands: going out to a stream, coming in from one."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from kombu.transport import virtual

from agentq.broker import envelope, publisher, routing
from agentq.store.effects import Message as Outgoing


class Message(virtual.Message):  # type: ignore[misc]
    """A received message, whose body the transport has decoded already."""

    def __init__(self, payload: dict[str, Any], channel: Any = None, **options: Any) -> None:
        """Take over what `received.judge` found."""
        super().__init__(payload, channel=channel, **options)
        self.letter = payload.get("letter")
        self.ahead_ms: int = getattr(channel, "ahead_ms", 0)
        """How far this machine's clock was ahead of the broker's when it was handed over."""
        self.died = False
        """Whether its process died while it ran; `broker.request` says so."""
        self.refused = ""
        """Why it is to be a dead letter, where that was decided before it was rejected."""
        if (decoded := payload.get("decoded")) is not None:
            self._decoded_cache = decoded


def message_of(queue: str, message: dict[str, Any]) -> tuple[Outgoing, str]:
    """Return kombu's *message* as a stream takes it, and its dedupe id."""
    headers, properties = message["headers"], dict(message["properties"])
    body = message["body"]
    properties.pop("body_encoding", None)
    properties.pop("delivery_tag", None)
    task_id = headers.get("id") or properties.get("correlation_id") or uuid4().hex
    priority = properties.get("priority")
    outgoing = Outgoing(
        queue,
        routing.lane_of(priority),
        publisher.due_ms(headers),
        task_id,
        "",
        "",
        envelope.pack(
            headers,
            properties,
            message.get("content-type") or envelope.JSON,
            message.get("content-encoding") or "utf-8",
        ),
        body.encode() if isinstance(body, str) else bytes(body),
    )
    return outgoing, publisher.dedupe_id(headers, task_id)
