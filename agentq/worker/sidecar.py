"""Celery's events and remote control, in a thread beside the loop.

Flower, `celery inspect` and `celery control` find what they know from any worker. It has its own
kombu connection: whatever it waits for, the loop does not. When nobody asked for events, telling it
something costs nothing.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from celery.signals import heartbeat_sent
from celery.utils.saferepr import saferepr
from celery.utils.sysinfo import load_average
from celery.worker import control, pidbox
from celery.worker import state as worker_state

from agentq.outcome import sendable
from agentq.worker.outcomes import Outcomes

if TYPE_CHECKING:
    from agentq.worker.delivery import Delivery

logger = logging.getLogger(__name__)

_HELD = 20_000
"""Events held while the broker is away; older ones are dropped."""

_SHOWN = 300
"""Bytes of arguments that an event carries."""

_BEAT_S = 2.0
"""Celery's own interval."""


def shown_arguments(delivery: Delivery) -> tuple[str, str]:
    """Return args and kwargs for people: as the sender wrote them, else JSON, cut where long."""
    headers, body = delivery.envelope.headers, delivery.body
    if text := headers.get("argsrepr"):
        return text, headers.get("kwargsrepr") or "{}"
    if len(body) <= _SHOWN:
        # What is no JSON, or not three parts, is shown as it is.
        with contextlib.suppress(ValueError, TypeError):
            args, kwargs, _ = orjson.loads(body)
            return orjson.dumps(args).decode(), orjson.dumps(kwargs).decode()
    return f"{body[1:_SHOWN].decode(errors='replace')}...", "{}"


class TaskEvents:
    """What happens to tasks: counted, and told in Celery's words."""

    def __init__(
        self, *, enabled: bool, on_error: Callable[[Exception], None] = lambda _: None
    ) -> None:
        """Begin empty; *on_error* is called with what a task raised."""
        self.enabled = enabled
        self._on_error = on_error
        self.outcomes = Outcomes()
        self.queue: deque[tuple[str, dict[str, Any]]] = deque(maxlen=_HELD)

    def _add(self, kind: str, delivery: Delivery, **fields: Any) -> None:
        if self.enabled:
            fields["uuid"] = delivery.id
            fields["timestamp"] = time.time()
            self.queue.append((kind, fields))

    def received(self, delivery: Delivery) -> None:
        """It was handed over."""
        if not self.enabled:
            return
        headers = delivery.envelope.headers
        args, kwargs = shown_arguments(delivery)
        self._add(
            "task-received",
            delivery,
            name=delivery.task.name,
            args=args,
            kwargs=kwargs,
            routing_key=delivery.pool,
            root_id=headers.get("root_id"),
            parent_id=headers.get("parent_id"),
            retries=delivery.retries or headers.get("retries", 0),
            eta=headers.get("eta"),
            expires=headers.get("expires"),
        )

    def started(self, delivery: Delivery) -> None:
        """It began to run."""
        self._add("task-started", delivery)

    def succeeded(self, delivery: Delivery, shown: bytes, runtime: float) -> None:
        """It returned."""
        self.outcomes.returned(delivery.task.name, runtime)
        if self.enabled:
            text = shown[:200].decode(errors="replace")
            self._add("task-succeeded", delivery, result=text, runtime=runtime)

    def failed(self, delivery: Delivery, error: Exception) -> None:
        """It raised."""
        self.outcomes.raised(delivery.task.name, error, again=False)
        self._raised("task-failed", delivery, error)

    def retried(self, delivery: Delivery, error: Exception) -> None:
        """It is to be tried again."""
        self.outcomes.raised(delivery.task.name, error, again=True)
        self._raised("task-retried", delivery, error)

    def revoked(self, delivery: Delivery, *, expired: bool) -> None:
        """It was not to be started."""
        self._add("task-revoked", delivery, terminated=False, signum=None, expired=expired)

    def _raised(self, kind: str, delivery: Delivery, error: Exception) -> None:
        self._on_error(error)
        if self.enabled:
            trace = sendable("".join(traceback.format_exception(error))[-2000:])
            shown = sendable(saferepr(error, 500))
            self._add(kind, delivery, exception=shown, traceback=trace)


class Sidecar:
    """Sends events and answers remote control; *consumer* is what control commands act on."""

    def __init__(self, *, consumer: Any, events: TaskEvents, handlers: dict[str, Any]) -> None:
        """Keep the parts; *handlers* replace Celery's commands of the same name."""
        self._consumer = consumer
        self._events = events
        self._handlers = handlers
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; safe twice."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="agentq-sidecar", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Send what is held, say goodbye, end; safe twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None

    def _run(self) -> None:
        pause = 0.5
        while not self._stop.is_set():
            try:
                self._connected()
            except Exception as error:  # noqa: BLE001 -- telemetry never ends the worker
                logger.debug("events and remote control: %r; again in %.1f s", error, pause)
                self._stop.wait(pause * random.uniform(0.5, 1.5))  # noqa: S311 -- a fleet's, spread
                pause = min(pause * 2, 10.0)

    def _connected(self) -> None:
        consumer = self._consumer
        app = consumer.app
        with app.connection_for_write() as writing, app.connection_for_read() as reading:
            dispatcher = app.events.Dispatcher(
                writing, hostname=consumer.hostname, buffer_group={"task"}
            )
            consumer.event_dispatcher = dispatcher
            self._beat(dispatcher, "worker-online")
            box = self._listen(reading)
            try:
                self._serve(dispatcher, reading)
            finally:
                box.cancel()
                self._flush(dispatcher)
                self._beat(dispatcher, "worker-offline")

    def _listen(self, connection: Any) -> Any:
        box = pidbox.Pidbox(self._consumer)
        box.node.handlers = {
            **control.Panel.data,
            "enable_events": lambda _state, **_: self._switch(on=True),
            "disable_events": lambda _state, **_: self._switch(on=False),
            **self._handlers,
        }
        box.node.channel = connection.channel()
        mailbox = box.node.listen(callback=box.on_message)
        mailbox.consume()
        return mailbox

    def _serve(self, dispatcher: Any, connection: Any) -> None:
        last = time.monotonic()
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.25)
            self._flush(dispatcher)
            if time.monotonic() - last >= _BEAT_S:
                last = time.monotonic()
                self._beat(dispatcher, "worker-heartbeat")

    def _beat(self, dispatcher: Any, kind: str) -> None:
        """Do as Celery's heart, which counts requests that our loop does not make."""
        heartbeat_sent.send(sender=self)
        dispatcher.send(
            kind,
            freq=_BEAT_S,
            active=len(self._consumer.hands),
            processed=worker_state.all_total_count[0],
            loadavg=load_average(),
            **worker_state.SOFTWARE_INFO,
        )

    def _flush(self, dispatcher: Any) -> None:
        queue = self._events.queue
        while queue:
            kind, fields = queue.popleft()
            dispatcher.send(kind, **fields)
        dispatcher.flush(errors=False)

    def _switch(self, *, on: bool) -> dict[str, str]:
        before, self._events.enabled = self._events.enabled, on
        already = "already " if before is on else ""
        return {"ok": f"task events {already}{'enabled' if on else 'disabled'}"}
