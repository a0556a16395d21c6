"""The result backend `agentq://`: Celery's Redis backend, whose writes are effects of a completion.

Celery ends a task in up to five steps (callbacks, result, chord count, chain, errbacks). Here they
are gathered (`outbox`) and sent as one `complete` with the delivery's fence: by our loop, or under
a stock pool by the child itself, whose parent's ack then finds nothing left to do.

`PlainBackend` is for an ordinary Celery app that only names our URL: the same keys and the same
documents, Celery's own chord algorithm.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend
from celery.canvas import maybe_signature
from celery.exceptions import Reject, TaskRevokedError
from celery.result import GroupResult
from celery.utils.functional import _regen
from kombu.utils.encoding import bytes_to_str, ensure_bytes, safe_repr

from agentq.broker import joins, outbox, serializer
from agentq.broker.outbox import Outbox
from agentq.broker.publisher import active, staging
from agentq.broker.terms import Terms
from agentq.clock import milliseconds
from agentq.errors import BrokerUnavailable
from agentq.outcome import sendable, text_of
from agentq.store import calls, effects
from agentq.store.address import Address, parse
from agentq.store.client import Store
from agentq.store.keys import GROUP, RESULT_PREFIX
from agentq.store.wrong_url import NO_REDIS

logger = logging.getLogger(__name__)

UNKNOWN_WIDTH = -1
UNFENCED = ""
_FOREVER_MS = 1 << 40
_FINAL = frozenset({states.SUCCESS, states.FAILURE, states.REVOKED})
_AFTER_MS = "_aq_after_ms"
"""On a request: after how long its delivery is to be handed out again."""
_TRIES = 120
"""How often an ended task's effects are sent anew, a second apart, while the broker is away."""


class PlainBackend(RedisBackend):  # type: ignore[misc]
    """Results of an ordinary Celery app in a cell."""

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        """Take where the cell is from *url*; nothing is connected yet."""
        self._store = Store(address=self._address_of(app, url), timeout=self._terms_of(app).timeout)
        super().__init__(app=app, url=None, **kwargs)
        self.connection_errors = (
            *self.connection_errors,  # type: ignore[has-type]
            BrokerUnavailable,
            NO_REDIS,
        )
        prefix = self._store.keys.prefix
        self.task_keyprefix = f"{prefix}{RESULT_PREFIX}".encode()
        self.group_keyprefix = f"{prefix}celery-taskset-meta-".encode()
        self.chord_keyprefix = f"{prefix}chord-unlock-".encode()

    def _address_of(self, _app: Any, url: str | None) -> Address:
        url = url or ""
        # Celery cuts `agentq+` off a URL that has a second scheme.
        return parse(url if url.startswith("agentq") else f"agentq+{url}")

    def _terms_of(self, _app: Any) -> Terms:
        return Terms()

    @property
    def client(self) -> Any:
        """Return the client that Celery's own code reads with."""
        return self._store.client

    def get(self, key: Any) -> Any:
        """Read a result; a broker that went away has as long as a call may take to come back."""
        return self.ensure(self.client.get, (key,), **self._patience)

    def mget(self, keys: Any) -> Any:
        """Read several results, as `get`."""
        return self.ensure(self.client.mget, (keys,), **self._patience)

    @property
    def _patience(self) -> dict[str, Any]:
        limit = self._store.timeout
        return {"timeout": limit.total_seconds() if limit else None, "interval_start": 0.2}

    def as_uri(self, include_password: bool = False) -> str:  # noqa: ARG002, FBT001, FBT002 -- Celery's
        """Return where the cell is, without its password."""
        return str(self._store.address)

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Pickle as Celery's do, with the whole URL left to the app's configuration."""
        return super(RedisBackend, self).__reduce__(args, kwargs or {})

    def remove_pending_result(self, result: Any) -> Any:
        """Forget a result nobody waits for; called by `AsyncResult.__del__`, so also at exit."""
        if sys.is_finalizing():
            return result  # nothing can be imported or sent any more
        return super().remove_pending_result(result)


class Backend(PlainBackend):
    """Results, groups and chords of one of our apps."""

    def _address_of(self, app: Any, _url: str | None) -> Address:
        address: Address = app.aq.address
        return address

    def _terms_of(self, app: Any) -> Terms:
        return Terms.of(app.aq.settings)

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:  # noqa: ARG002 -- Celery's
        """Do nothing: `AsyncResult.get` subscribes when somebody waits, not at each publish."""
        return {}

    # -- ending a task ----------------------------------------------------------------------------

    def mark_as_done(self, task_id: str, result: Any, request: Any = None,
                     store_result: bool = True, state: str = states.SUCCESS) -> None:  # noqa: FBT001, FBT002 -- Celery's  # fmt: skip
        """End a task that returned."""
        with self._settling(request, state):
            super().mark_as_done(task_id, result, request, store_result, state)
            self.app.step_ended(request, state, result)

    def mark_as_failure(self, task_id: str, exc: Exception, traceback: Any = None,
                        request: Any = None, **options: Any) -> None:  # fmt: skip
        """End a task that raised."""
        state = options.get("state", states.FAILURE)
        if request is not None:
            request.__dict__.pop(outbox.ATTRIBUTE, None)  # its callbacks are not to be sent
        with self._settling(request, state):
            super().mark_as_failure(task_id, exc, traceback, request, **options)
            self.app.step_ended(request, state, exc)

    def mark_as_revoked(self, task_id: str, reason: str = "", request: Any = None,
                        store_result: bool = True, state: str = states.REVOKED) -> None:  # noqa: FBT001, FBT002 -- Celery's  # fmt: skip
        """End a task that was revoked or expired, and what waits for it.

        Celery's leaves the rest of a chain pending for ever; here it fails like any other.
        """
        self.mark_as_failure(
            task_id, TaskRevokedError(reason), request=request,
            store_result=store_result, state=state,
        )  # fmt: skip

    def mark_as_retry(self, task_id: str, exc: Exception, traceback: Any = None,
                      request: Any = None, **options: Any) -> Any:  # fmt: skip
        """End an attempt that asked to be retried; without its message only store the state."""
        if outbox.current() is None and outbox.ATTRIBUTE not in getattr(request, "__dict__", {}):
            return super().mark_as_retry(task_id, exc, traceback, request, **options)
        with self._settling(request, states.RETRY):
            return super().mark_as_retry(task_id, exc, traceback, request, **options)

    def ends_again(self, request: Any, after: timedelta) -> bool:
        """Let the end of a delivery be that it is handed out again, counted as a retry.

        Returns whether it can: not one that was acked before it ran.
        """
        stream, _ = self._fence(request)
        if stream:
            request.__dict__[outbox.ATTRIBUTE] = Outbox()
            request.__dict__[_AFTER_MS] = milliseconds(after)
        return bool(stream)

    def is_lost(self, request: Any) -> bool:
        """Whether a delivery that has waited here for longer than a lease is another's by now.

        This process, or its parent, was stopped meanwhile. False while the broker does not answer:
        what it does is refused at the end.
        """
        info = (getattr(request, "properties", None) or {}).get("delivery_info") or {}
        waited = monotonic() - info.get("taken", math.inf)
        if waited < self.app.aq.settings.worker.lease.total_seconds():
            return False
        stream, entry = self._fence(request)
        if not stream:
            return False
        with contextlib.suppress(BrokerUnavailable):
            asked = ("XPENDING", stream, GROUP, entry, entry, 1)
            return not self._store.command(*asked, parse_detail=True)  # the entry, no summary
        return False

    def settle(self, request: Any) -> None:
        """End a delivery with what was gathered for *request*; our loop does it itself."""
        box = request.__dict__.pop(outbox.ATTRIBUTE, None)
        if box is not None and outbox.current() is None:
            self._complete(request, box)

    @contextmanager
    def _settling(self, request: Any, state: str) -> Iterator[None]:
        if (current := outbox.current()) is not None:  # our loop completes
            with outbox.closing():
                yield
            current.effects += _forgotten(request, state)
            return
        box = getattr(request, outbox.ATTRIBUTE, None) or Outbox()
        with outbox.scope(box), outbox.closing():
            yield
        box.effects += _forgotten(request, state)
        if request is not None:
            request.__dict__.pop(outbox.ATTRIBUTE, None)
            if letter := request.__dict__.pop(outbox.LETTER, None):
                box.effects.append(letter)
        self._complete(request, box)

    def _complete(self, request: Any, box: Outbox) -> None:
        """Send what was gathered, fenced by the delivery where the message came with one.

        Raises:
            Reject: the broker stayed away; the message is then handed out again.
        """
        stream, entry = self._fence(request)
        if not stream and not box.effects:
            return
        run = (getattr(request, "aq", None) or {}).get("run", "") if stream else ""
        prefix = self._store.keys.prefix
        after_ms = getattr(request, "__dict__", {}).pop(_AFTER_MS, None)
        if after_ms is None:
            ending = calls.complete(prefix, stream, entry, run, self.app.keep_ms, box.effects)
        else:
            _, pool, lane = stream.rsplit(":", 2)
            ending = calls.fail(
                prefix, f"{pool}:{lane}", stream, entry,
                after_ms=after_ms, retry=True, effects=box.effects,
            )  # fmt: skip
        try:
            for call in (*staging(prefix, box.staged), ending):
                answer = self.ensure(self._store.call, (call,), max_retries=_TRIES)
        except BrokerUnavailable as error:
            raise Reject(str(error), requeue=True) from error
        if answer == b"stale":
            logger.warning(
                "task %s: its delivery %s is no longer this worker's; what it did is refused",
                request.id, entry,
            )  # fmt: skip

    def _fence(self, request: Any) -> tuple[str, str]:
        """Return stream and entry of the delivery, empty where it is acked before it runs."""
        properties = getattr(request, "properties", None) or {}
        stream, _, entry = str(properties.get("delivery_tag") or "").rpartition("|")
        task = self.app.tasks.get(getattr(request, "task", None)) if stream else None
        if task is not None and not task.acks_late:
            return UNFENCED, UNFENCED
        return stream, entry

    def _store_result(self, task_id: str, result: Any, state: str, traceback: Any = None,
                      request: Any = None, **_: Any) -> Any:  # fmt: skip
        """Write the result document; the first success stands because completions are fenced."""
        if isinstance(traceback, str):
            traceback = sendable(traceback)
        document = self._get_result_meta(
            result=result, state=state, traceback=traceback, request=request
        )
        document["task_id"] = bytes_to_str(task_id)
        expires = self.failure_expires if state == states.FAILURE else self.expires
        ttl = int((expires or 0) * 1000) or _FOREVER_MS
        self._apply(effects.meta(bytes_to_str(task_id), ttl, ensure_bytes(self.encode(document))))
        return result

    def _apply(self, *effect: effects.Effect) -> None:
        if (box := outbox.sink()) is not None:
            box.effects += effect
        else:
            call = calls.complete(
                self._store.keys.prefix, UNFENCED, UNFENCED, "", self.app.keep_ms, effect
            )
            self.ensure(self._store.call, (call,))

    def decode_result(self, payload: Any) -> Any:
        """Read a result document; a large result is where the document says."""
        document = super().decode_result(payload)
        if reference := document.get("blob"):
            document["result"] = serializer.loads(self.app.aq.blobs.get(reference))
        return document

    # -- chords -----------------------------------------------------------------------------------

    def apply_chord(self, header_result_args: Any, body: Any, **_: Any) -> None:
        """Open the join with the body's message, before any header task is published."""
        join_id, results = header_result_args
        nested = not isinstance(results, _regen) and any(
            isinstance(result, GroupResult) for result in results
        )
        if nested:
            super().apply_chord(header_result_args, body)
        # A copy: publishing changes it, and the header's tasks carry it too.
        callback = maybe_signature(serializer.loads(serializer.dumps(body)), app=self.app)
        box = Outbox(whole=True)
        with outbox.scope(box), outbox.closing():
            callback.apply_async((joins.reference(join_id, nested=nested),), add_to_parent=False)
        ttl = int((self.chord_expires or 0) * 1000) or self.app.join_ttl_ms
        opened, followers = joins.opening(join_id, ttl, box)
        self._apply(*followers, opened)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Tell the join how many outcomes it waits for; visible with the header's messages."""
        effect = effects.width(group_id, chord_size)
        if (publisher := active()) is not None:
            publisher.effect(effect)
        else:
            self._apply(effect)

    def add_to_chord(self, group_id: str, result: Any) -> None:  # noqa: ARG002 -- Celery's
        """Let the join wait for one more."""
        self._apply(effects.width(group_id, 1, more=True))

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_: Any) -> None:
        """Count one header task's outcome; a flow's member is counted where its step ends."""
        if not request.group or not request.id or "flow" in (getattr(request, "aq", None) or {}):
            return
        outcome = ensure_bytes(self.encode(self._outcome(request, state, result)))
        index = joins.index_of(request.group_index, request.id)
        self._apply(effects.part(request.group, index, outcome))

    def _outcome(self, request: Any, state: str, result: Any) -> dict[str, Any]:
        if state not in self.PROPAGATE_STATES:
            return {"value": self.prepare_value(result)}
        stored = result if isinstance(result, dict) else self.prepare_exception(result)
        return {
            "kind": stored["exc_type"],
            "message": text_of(result),
            "task": request.id,
            "shown": sendable(safe_repr(result)),
            "error": stored,
        }

    def prepare_exception(self, exc: Any, serializer: Any = None) -> Any:
        """Return what is kept of an exception; long texts are cut, as they are in a run."""
        stored = super().prepare_exception(exc, serializer)
        if isinstance(stored, dict):
            stored["exc_message"] = [
                sendable(part) if isinstance(part, str) else part for part in stored["exc_message"]
            ]
        return stored

    PROPAGATE_STATES = states.PROPAGATE_STATES


def _forgotten(request: Any, state: str) -> list[effects.Effect]:
    """Return what drops a chord's outcomes once its body has ended for good."""
    ours = getattr(request, "aq", None) or {}
    if state not in _FINAL or "flow" in ours or not ours.get("sole"):
        return []
    return [effects.forget(ours["join"])]
