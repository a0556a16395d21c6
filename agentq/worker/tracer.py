"""Runs a delivery and turns how it ended into one completion.

step of a flow          here: its own end, no canvas, no Celery signals on its path
async def task          `celery_tasks.AsyncTasks`: Celery's states, hooks, signals on the loop
def task                `celery_tasks.ThreadTasks`: Celery's own tracer, in a thread
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.exceptions import TaskRevokedError

from agentq.broker import serializer
from agentq.broker.context import Context
from agentq.broker.envelope import Malformed
from agentq.broker.publisher import staging
from agentq.broker.task import CALLED
from agentq.clock import milliseconds
from agentq.errors import BlobMissing, BlobsUnavailable, BrokerUnavailable
from agentq.flows.compiler import Place
from agentq.outcome import Err, text_of
from agentq.store import calls, effects
from agentq.worker.again import Again
from agentq.worker.celery_tasks import AsyncTasks, ThreadTasks
from agentq.worker.delivery import Delivery, buried
from agentq.worker.parts import Parts
from agentq.worker.requests import Entered, bare_request
from agentq.worker.steps import RunExpired, StepRunner

logger = logging.getLogger(__name__)


class Tracer:
    """Runs deliveries; one per process."""

    def __init__(self, parts: Parts) -> None:
        """Keep the parts."""
        self._parts = parts
        self._prefix = parts.cell.store.keys.prefix
        self._keep_ms = milliseconds(parts.app.settings.runs.keep)
        self._limit = parts.app.settings.broker.delivery_limit
        self._result_ttl_ms = milliseconds(parts.app.settings.broker.result_ttl)
        self._steps = StepRunner(parts)
        self._async_tasks = AsyncTasks(parts, self._steps)
        self._thread_tasks = ThreadTasks(parts)
        self._core = _core()

    async def run(self, delivery: Delivery) -> list[calls.Call]:
        """Run *delivery*; return the calls that end it.

        Raises:
            asyncio.CancelledError: it was cancelled; its message is still this worker's.
        """
        try:
            if self._is_flow_step(delivery):
                again = await self._flow_step(delivery)
            elif delivery.attempts >= self._limit:
                again = None
                self._async_tasks.end_lost(delivery)
            elif is_async(delivery.task):
                again = await self._async_tasks.run(delivery)
            else:
                again = await self._thread_tasks.run(delivery)
        except (Malformed, BlobMissing) as error:
            again = None
            delivery.outbox.effects[:] = buried(delivery, error, self._keep_ms)
            logger.warning("%s[%s]: dead letter: %s", delivery.task.name, delivery.id, error)
        return self._calls(delivery, again)

    def terminated(self, delivery: Delivery) -> list[calls.Call]:
        """Return the calls that end a delivery which was cancelled by remote control.

        It ends by raising: its chain, chord or run goes on with that, and does not wait for ever.
        """
        delivery.outbox.clear()
        if self._is_flow_step(delivery):
            place = Place.of(delivery.envelope.ours, delivery.id)
            context = self._steps.context(delivery)
            error = TaskRevokedError("terminated")
            self._raised(delivery, context, place, error, time.monotonic())
        else:
            self._async_tasks.end_terminated(delivery)
        return self._calls(delivery, None)

    @staticmethod
    def _is_flow_step(delivery: Delivery) -> bool:
        return delivery.task.step is not None and "flow" in delivery.envelope.ours

    def _calls(self, delivery: Delivery, again: Again | None) -> list[calls.Call]:
        box = delivery.outbox
        if again is not None:
            lane = f"{delivery.pool}:{delivery.lane}"
            return [
                calls.fail(
                    self._prefix, lane, delivery.stream, delivery.entry,
                    after_ms=again.after_ms, retry=again.counts, effects=box.effects,
                )
            ]  # fmt: skip
        end = calls.complete(
            self._prefix, delivery.stream, delivery.entry, delivery.run, self._keep_ms, box.effects
        )
        return [*staging(self._prefix, box.staged), end]

    # -- steps of flows ---------------------------------------------------------------------------

    async def _flow_step(self, delivery: Delivery) -> Again | None:
        """Read what the step is given, then run it: its deadline is asked in between."""
        context = self._steps.context(delivery)
        place = Place.of(delivery.envelope.ours, delivery.id)
        args, _, _ = delivery.arguments()
        try:
            args = await self._parts.joins.resolved(delivery, args)
        except (BrokerUnavailable, BlobsUnavailable, BlobMissing):
            raise  # no outcome of the step: it never began
        except Exception as error:  # noqa: BLE001 -- what it was to be given can not be read
            return self._raised(delivery, context, place, error, time.monotonic())
        return await self._attempt(delivery, context, place, args)

    async def _attempt(
        self, delivery: Delivery, context: Context, place: Place, args: list[Any]
    ) -> Again | None:
        step, parts = delivery.task.step, self._parts
        assert step is not None  # noqa: S101 -- `run` sends only steps here
        graph = parts.app.flows[place.flow].graph
        began = time.monotonic()
        started_ms = parts.clock.now_ms(began)
        parts.events.started(delivery)
        try:
            if delivery.deadline.passed(started_ms):
                raise RunExpired(f"{step.name!r} came behind its run's deadline")  # noqa: TRY301
            with Entered(delivery.task, lambda: _request(delivery, parts.hostname)):
                value = await self._steps.call(delivery, context, args)
            result = step.encode(value)
            parts.app.compiler.ended(graph, place, result, delivery.outbox)
            reference = ""
            if blobs := delivery.outbox.blobs:
                reference = parts.app.compiler.reference_to(delivery.run, result, blobs)
        except RunExpired as error:
            self._expired(delivery, error)
            return None
        except Exception as error:  # noqa: BLE001 -- whatever a step raises is its outcome
            return self._raised(delivery, context, place, error, began)
        ran = time.monotonic() - began
        if blobs:
            try:
                await self._write(blobs, context)
            except RunExpired as error:
                self._expired(delivery, error)
                return None
        self._note(delivery, context, "done", started_ms, ran)
        delivery.outbox.effects.append(self._success(delivery, result, reference))
        parts.events.succeeded(delivery, result, ran)
        return None

    async def _write(self, blobs: dict[str, bytes], context: Context) -> None:
        """Write what an ended step leaves; a place that fails is no outcome of the step."""
        left = context.remaining()
        try:
            async with asyncio.timeout(left.total_seconds() if left is not None else None):
                await self._parts.app.blob_endings.aput(blobs)
        except TimeoutError as error:
            raise RunExpired("its blobs could not be written before its run's deadline") from error

    @staticmethod
    def _expired(delivery: Delivery, error: RunExpired) -> None:
        # The completion finds the deadline passed as well and ends the run as expired.
        logger.info("%s[%s]: %s", delivery.task.name, delivery.id, error)
        delivery.outbox.effects.clear()

    def _raised(
        self, delivery: Delivery, context: Context, place: Place, error: Exception, began: float
    ) -> Again | None:
        step = delivery.task.step
        assert step is not None  # noqa: S101 -- as above
        ran = time.monotonic() - began
        started_ms = self._parts.clock.now_ms(began)
        delivery.outbox.clear()
        after = step.again(error, delivery.retries, jitter=self._parts.jitter())
        if after is not None:
            self._note(delivery, context, "retry", started_ms, ran, error, after)
            self._parts.events.retried(delivery, error)
            logger.warning(
                "%s[%s]: attempt %d raised %s: %s; again in %s",
                step.name, delivery.id, delivery.attempt, type(error).__name__, text_of(error),
                after,
            )  # fmt: skip
            return Again(milliseconds(after), counts=True)
        logger.error("%s[%s]: failed", step.name, delivery.id, exc_info=error)
        outcome = Err(type(error).__name__, text_of(error), step.name, delivery.attempt)
        graph = self._parts.app.flows[place.flow].graph
        self._note(delivery, context, "failed", started_ms, ran, error)
        self._parts.app.compiler.ended(graph, place, outcome, delivery.outbox)
        delivery.outbox.effects.append(self._failure(delivery, error))
        self._parts.events.failed(delivery, error)
        return None

    def _note(  # noqa: PLR0913, PLR0917 -- the fields of a timeline's entry
        self,
        delivery: Delivery,
        context: Context,
        state: str,
        started_ms: int,
        ran: float,
        error: Exception | None = None,
        after: timedelta | None = None,
    ) -> None:
        """Add the step's entry to the run's timeline.

        What this process takes for the broker's time lags behind it, more the busier both are, and
        each process' by its own. Where it says that the step began before it was queued, the time
        at which it was queued, the broker's own, is nearer: so no step stands before another whose
        end it waited for.
        """
        start = max(started_ms, delivery.ready_ms)
        data = {
            "step": delivery.task.name,
            "task": delivery.id,
            "state": state,
            "attempt": delivery.attempt,
            "worker": self._parts.hostname,
            "core": self._core,
            "start": start,
            "waited": start - delivery.ready_ms,
            "ran": round(ran * 1000, 1),
            **context.ledger.as_json(),
        }
        if error is not None:
            data |= {"error": type(error).__name__, "message": text_of(error)[:500]}
        if after is not None:
            data["after"] = milliseconds(after)
        kind = "retry" if state == "retry" else "step"
        event = effects.event(delivery.run, kind, serializer.dumps(data))
        # Right before an `end`, which is a run's last event and shares the entry.
        box = delivery.outbox.effects
        place = next((at for at, effect in enumerate(box) if effect[0] == "end"), 0)
        box.insert(place, event)

    def _success(self, delivery: Delivery, result: bytes, reference: str) -> effects.Effect:
        if reference:
            result = b'null,"blob":"' + reference.encode() + b'"'
        document = (
            b'{"status":"SUCCESS","result":' + result + b',"traceback":null,"children":[],'
            b'"date_done":"' + _now() + b'","task_id":"' + delivery.id.encode() + b'"}'
        )
        return effects.meta(delivery.id, self._result_ttl_ms, document)

    def _failure(self, delivery: Delivery, error: Exception) -> effects.Effect:
        document: dict[str, Any] = {
            "status": "FAILURE",
            "result": {
                "exc_type": type(error).__name__,
                "exc_message": [text_of(error)],
                "exc_module": type(error).__module__,
            },
            "traceback": None,
            "children": [],
            "date_done": _now().decode(),
            "task_id": delivery.id,
        }
        return effects.meta(delivery.id, self._result_ttl_ms, serializer.dumps(document))


def is_async(task: Any) -> bool:
    """Whether the task's function is a coroutine function (or a step, which we run ourselves)."""
    function = getattr(task, "_orig_run", None) or task.run
    return task.step is not None or inspect.iscoroutinefunction(function)


def _request(delivery: Delivery, hostname: str) -> Any:
    headers = delivery.envelope.headers
    fields = {
        "id": delivery.id,
        "task": delivery.task.name,
        "root_id": headers.get("root_id"),
        "parent_id": headers.get("parent_id"),
        "group": headers.get("group"),
        "group_index": headers.get("group_index"),
        "retries": delivery.retries,
        "hostname": hostname,
        "called_directly": False,
        "is_eager": False,
        CALLED: True,
        "aq": delivery.envelope.ours,
        "delivery_info": {
            "routing_key": delivery.pool,
            "priority": delivery.envelope.properties.get("priority"),
        },
    }
    return bare_request(fields)


def _core() -> str:
    cores = sorted(os.sched_getaffinity(0))
    return ",".join(map(str, cores)) if len(cores) <= 4 else f"{len(cores)} cores"  # noqa: PLR2004


def _now() -> bytes:
    return datetime.now(UTC).isoformat().encode()
