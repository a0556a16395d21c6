"""How our apps publish a task: Celery's message, built by Celery, sent by our publisher.

Celery's own path goes through a kombu connection and channel, which costs two to three times the
message itself. Fan-out exchanges (remote control, `Broadcast`) and producers that a caller brings
along still take it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from celery import signals
from celery.app.amqp import AMQP as CeleryAMQP  # noqa: N811 -- a class
from celery.app.amqp import task_message
from kombu import Queue, compression, serialization
from kombu.common import Broadcast

from agentq.broker import envelope, outbox, routing, serializer
from agentq.broker.publisher import Publisher, dedupe_id, due_ms
from agentq.errors import InvalidOption
from agentq.store.effects import Message

_OURS = (None, serializer.NAME, "json")
_COUNTDOWN, _EXPIRES = 4, 8
"""Their places among the positional arguments of `as_task_v2`."""
_FARTHEST_S = 100 * 365 * 86_400
"""What is due or over later than in a hundred years is a mistake; dates end with the year 9999."""


class AMQP(CeleryAMQP):  # type: ignore[misc]
    """Celery's `app.amqp`, publishing through `Publisher`."""

    def as_task_v2(self, *args: Any, **options: Any) -> task_message:
        """Build the message; nobody pays for a repr that nobody reads (the worker makes it).

        A countdown stays relative, so that Redis' clock decides and not the producer's.

        Raises:
            InvalidOption: a countdown or expires of seconds that lie beyond a hundred years.
        """
        countdown = _seconds("countdown", _COUNTDOWN, args, options)
        _seconds("expires", _EXPIRES, args, options)
        options["argsrepr"] = options.get("argsrepr") or ""
        options["kwargsrepr"] = options.get("kwargsrepr") or ""
        message: task_message = super().as_task_v2(*args, **options)
        ours: dict[str, Any] = {}
        if countdown and countdown > 0:
            ours["after"] = int(countdown * 1000)
        if join := self._inherited_join(message.headers["id"]):
            ours |= join
        if ours:
            message.headers["aq"] = {"v": envelope.VERSION, **ours}
        return message

    def _inherited_join(self, task_id: str) -> dict[str, Any] | None:
        """Return the join that the body of a chord, now retried or replaced, was given."""
        task = self.app.current_worker_task
        if task is None or task.request.id != task_id:
            return None
        ours = getattr(task.request, "aq", None) or {}
        return {key: ours[key] for key in ("join", "sole")} if ours.get("sole") else None

    def _retry_publish(self, publish: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Publish a callback of an ended task: part of its completion."""
        task = self.app.current_worker_task
        if task is None:
            return publish(*args, **kwargs)
        with outbox.gathering(task.request):
            return publish(*args, **kwargs)

    @cached_property
    def send_task_message(self) -> Callable[..., Any]:
        """Return what Celery calls to send a built message."""
        stock = super()._create_task_sender()

        def send(producer: Any, name: str, message: task_message, **options: Any) -> Any:
            queue = self._queue(options)
            ours = isinstance(producer, Publisher)
            if ours and queue is not None:
                return self._publish(producer, name, message, queue, options)
            if not ours:
                return stock(producer, name, message, **options)
            with self.app.producer_pool.acquire(block=True) as real:
                return stock(real, name, message, **options)

        return send

    def _queue(self, options: dict[str, Any]) -> Queue | None:
        """Return the stream that the options name, None for an exchange of another kind."""
        queue = options.get("queue")
        if queue is None:
            if options.get("exchange"):
                return None
            queue = options.get("routing_key") or self.app.conf.task_default_queue
        if isinstance(queue, str):
            queue = self.queues[queue]
        if isinstance(queue, Broadcast) or queue.exchange.type == "fanout":
            return None
        return queue

    def _publish(
        self,
        publisher: Publisher,
        name: str,
        message: task_message,
        queue: Queue,
        options: dict[str, Any],
    ) -> None:
        headers, properties, body, _ = message
        headers.update(options.get("headers") or {})
        self._announce(signals.before_task_publish, name, queue, headers, body, properties)
        content_type, encoding, data = self._encode(body, options.get("serializer"))
        if method := options.get("compression") or self.app.conf.task_compression:
            data, headers["compression"] = compression.compress(data, method)
        priority = options.get("priority")
        if priority is None:
            priority = routing.DEFAULT_PRIORITY
        properties |= {
            "priority": priority,
            "delivery_info": {"exchange": "", "routing_key": queue.name},
        }
        publisher.add(
            Message(
                queue.name,
                routing.lane_of(priority),
                due_ms(headers),
                headers["id"],
                "",
                "",
                envelope.pack(headers, properties, content_type, encoding),
                data,
            ),
            dedupe_id(headers, headers["id"]),
            retry=bool(headers.get("retries")),
        )
        self._announce(signals.after_task_publish, name, queue, headers, body)

    def _encode(self, body: Any, name: str | None) -> tuple[str, str, bytes]:
        chosen = name or self.app.conf.task_serializer
        if chosen in _OURS:
            return envelope.JSON, "utf-8", serializer.dumps(body)
        content_type, encoding, data = serialization.dumps(body, chosen)
        return content_type, encoding, data.encode() if isinstance(data, str) else data

    def _announce(self, signal: Any, name: str, queue: Queue, headers: Any, body: Any,
                  properties: Any = None) -> None:  # fmt: skip
        if not signal.receivers:
            return
        extra = {} if properties is None else {
            "properties": properties, "declare": [queue], "retry_policy": {},
        }  # fmt: skip
        signal.send(
            sender=name, body=body, exchange="", routing_key=queue.name, headers=headers, **extra
        )


def _seconds(option: str, place: int, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return what is given as *option*; where it is a number, one that a date can be made of."""
    value = args[place] if len(args) > place else options.get(option)
    if isinstance(value, int | float) and not -_FARTHEST_S <= value <= _FARTHEST_S:
        raise InvalidOption(f"{option}={value!r} is not in seconds from now, within 100 years")
    return value
