"""The result backend `agentq://`: Celery's Redis backend, whose writes are effects of a completion.

Celery ends a task in up to five steps (callbacks, result, chord count, chain, errbacks). Here they
are gathered (`outbox`) and sent as one `complete` with the delivery's fence: by our loop, or under
a stock pool by the child itself, whose parent's ack then finds nothing left to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend
from celery.canvas import maybe_signature
from celery.result import GroupResult
from kombu.utils.encoding import bytes_to_str

from agentq.broker import joins, outbox, serializer
from agentq.broker.outbox import Outbox
from agentq.broker.publisher import active, staging
from agentq.store import calls, effects
from agentq.store.address import parse
from agentq.store.client import Store
from agentq.store.keys import RESULT_PREFIX

UNKNOWN_WIDTH = -1
UNFENCED = ""
_NO_CAP = 1 << 30


class Backend(RedisBackend):  # type: ignore[misc]
    """Results, groups and chords of a cell."""

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        """Take where the cell is from *url*, else from the app's settings."""
        self._aq = getattr(app, "aq", None)
        self._address = self._aq.address if self._aq is not None else parse(url or "")
        super().__init__(app=app, url=None, **kwargs)
        self._store = Store(address=self._address, timeout=None)
        prefix = self._store.keys.prefix
        self.task_keyprefix = f"{prefix}{RESULT_PREFIX}".encode()
        self.group_keyprefix = f"{prefix}celery-taskset-meta-".encode()
        self.chord_keyprefix = f"{prefix}chord-unlock-".encode()

    @property
    def client(self) -> Any:
        """Return the client that Celery's own code reads with."""
        return self._store.client

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:
        """Do nothing: `AsyncResult.get` subscribes when somebody waits, not at each publish."""
        return {}

    # -- ending a task ----------------------------------------------------------------------------

    def mark_as_done(self, task_id: str, result: Any, request: Any = None,
                     store_result: bool = True, state: str = states.SUCCESS) -> None:  # noqa: FBT001, FBT002 -- Celery's signature  # fmt: skip
        """End a task that returned."""
        with self._settling(request):
            super().mark_as_done(task_id, result, request, store_result, state)
            self.app.step_ended(request, state, result)

    def mark_as_failure(self, task_id: str, exc: Exception, traceback: Any = None,
                        request: Any = None, **options: Any) -> None:  # fmt: skip
        """End a task that raised."""
        if request is not None:
            request.__dict__.pop("_aq_outbox", None)  # its callbacks are not to be sent
        with self._settling(request):
            super().mark_as_failure(task_id, exc, traceback, request, **options)
            self.app.step_ended(request, options.get("state", states.FAILURE), exc)

    def mark_as_revoked(self, task_id: str, *args: Any, **options: Any) -> None:
        """End a task that was revoked or expired."""
        with self._settling(options.get("request")):
            super().mark_as_revoked(task_id, *args, **options)

    def mark_as_retry(self, task_id: str, exc: Exception, traceback: Any = None,
                      request: Any = None, **options: Any) -> Any:  # fmt: skip
        """End an attempt whose task asked to be retried."""
        with self._settling(request):
            return super().mark_as_retry(task_id, exc, traceback, request, **options)

    @contextmanager
    def _settling(self, request: Any) -> Iterator[None]:
        if outbox.current() is not None:  # our loop completes
            with outbox.closing():
                yield
            return
        box = getattr(request, "_aq_outbox", None) or Outbox()
        with outbox.scope(box), outbox.closing():
            yield
        self._complete(request, box)

    def _complete(self, request: Any, box: Outbox) -> None:
        """Send what was gathered, fenced by the delivery where the message came with one."""
        prefix = self._store.keys.prefix
        properties = getattr(request, "properties", None) or {}
        stream, _, entry = str(properties.get("delivery_tag") or "").rpartition("|")
        if not stream and not box.effects:
            return
        run = (getattr(request, "aq", None) or {}).get("run", "") if stream else ""
        for call in staging(prefix, box.staged):
            self._store.call(call)
        keep = self.app.keep_ms
        self._store.call(calls.complete(prefix, stream, entry, run, keep, box.effects))

    def _store_result(self, task_id: str, result: Any, state: str, traceback: Any = None,
                      request: Any = None, **_: Any) -> Any:  # fmt: skip
        """Write the result document; the first success stands because completions are fenced."""
        document = self._get_result_meta(
            result=result, state=state, traceback=traceback, request=request
        )
        document["task_id"] = bytes_to_str(task_id)
        ttl = int((self.expires or 0) * 1000) or _NO_CAP
        effect = effects.meta(bytes_to_str(task_id), ttl, serializer.dumps(document))
        self._apply(effect)
        return result

    def _apply(self, *effect: effects.Effect) -> None:
        if (box := outbox.sink()) is not None:
            box.effects += effect
        else:
            prefix = self._store.keys.prefix
            self._store.call(
                calls.complete(prefix, UNFENCED, UNFENCED, "", self.app.keep_ms, effect)
            )

    # -- chords -----------------------------------------------------------------------------------

    def apply_chord(self, header_result_args: Any, body: Any, **_: Any) -> None:
        """Open the join with the body's message, before any header task is published."""
        header = self.app.GroupResult(*header_result_args)
        nested = any(isinstance(result, GroupResult) for result in header.results)
        if nested:
            super().apply_chord(header_result_args, body)
        callback = maybe_signature(serializer.loads(serializer.dumps(body)), app=self.app)
        box = Outbox()
        with outbox.scope(box), outbox.closing():
            callback.apply_async((joins.reference(header.id, nested=nested),))
        ttl = int((self.chord_expires or 0) * 1000) or self.app.join_ttl_ms
        opened, followers = _as_join(header.id, ttl, box)
        outer = outbox.sink()
        if outer is not None:
            outer.staged |= box.staged
        else:
            for call in staging(self._store.keys.prefix, box.staged):
                self._store.call(call)
        self._apply(*followers, opened)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Tell the join how many outcomes it waits for; visible with the header's messages."""
        effect = effects.width(group_id, chord_size)
        if (publisher := active()) is not None:
            publisher.effect(effect)
        else:
            self._apply(effect)

    def add_to_chord(self, group_id: str, result: Any) -> None:
        """Let the join wait for one more."""
        self._apply(effects.width(group_id, 1, more=True))

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_: Any) -> None:
        """Count one header task's outcome."""
        if not request.group or not request.id:
            return
        index = request.group_index
        self._apply(
            effects.part(
                request.group,
                request.id if index is None else index,
                serializer.dumps(self._outcome(request, state, result)),
            )
        )

    def _outcome(self, request: Any, state: str, result: Any) -> dict[str, Any]:
        if state in states.PROPAGATE_STATES:
            return {
                "kind": type(result).__name__,
                "message": ", ".join(str(arg) for arg in getattr(result, "args", ())) or str(result),
                "task": request.id,
            }
        return {"value": result}


def _as_join(
    join_id: str, ttl_ms: int, box: Outbox
) -> tuple[effects.Effect, list[effects.Effect]]:
    """Turn the messages of a published body into the join's body; the rest goes before it."""
    body = [effects.Message(*effect[1:]) for effect in box.effects if effect[0] == "put"]
    followers = [effect for effect in box.effects if effect[0] != "put"]
    opened = effects.join(
        join_id, width=UNKNOWN_WIDTH, at_once=0, ttl_ms=ttl_ms, run="", body=body, members=()
    )
    return opened, followers
