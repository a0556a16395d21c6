"""Ordinary Celery tasks under our loop, with the states, hooks, callbacks and signals of Celery.

A `def` task runs in a thread under Celery's own tracer: hooks and signal receivers that count on
being in the task's thread (Django's connections) find it so. An `async def` task runs on the loop
under `AsyncTasks`, which ends it with Celery's own helpers. Both gather what Celery publishes and
stores at a task's end in the delivery's outbox.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery import canvas, signals, states
from celery.app import trace
from celery.app.task import Context as Request
from celery.app.task import get_actual_ignore_result
from celery.app.trace import TraceInfo, build_tracer, task_has_custom
from celery.exceptions import (
    Ignore,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
)
from celery.utils.saferepr import saferepr
from celery.worker import state as worker_state

from agentq.broker import envelope, outbox
from agentq.broker.task import CALLED, before_it_begins
from agentq.errors import StepAborted, WorkerLost
from agentq.worker.again import Again
from agentq.worker.contained import CONTAINED
from agentq.worker.delivery import Delivery, dead_letter
from agentq.worker.requests import Entered, request_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentq.worker.parts import Parts
    from agentq.worker.steps import StepRunner

logger = logging.getLogger(__name__)


class _Refused(Exception):  # noqa: N818 -- no error
    """The task is not to be started; carries what it ends with."""


class _CeleryTasks:
    """What both kinds need."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def _check_startable(self, delivery: Delivery) -> None:
        """Raise `_Refused` for a task that was revoked or has expired."""
        if delivery.id in worker_state.revoked:
            raise _Refused("revoked")
        expires = delivery.envelope.headers.get("expires")
        if expires:
            now = self._parts.clock.now_ms(time.monotonic()) / 1000
            if now > datetime.fromisoformat(expires).timestamp():
                raise _Refused("expired")

    def _end_refused(self, delivery: Delivery, request: Request, why: str) -> None:
        """End a task that may not start by raising: `mark_as_revoked` would hang its chain."""
        backend = delivery.task.backend
        ignore = get_actual_ignore_result(delivery.task, request)
        backend.mark_as_failure(
            delivery.id, TaskRevokedError(why), request=request,
            store_result=not ignore, state=states.REVOKED,
        )  # fmt: skip
        signals.task_revoked.send(
            sender=delivery.task, request=request, terminated=why == "terminated", signum=None,
            expired=why == "expired",
        )  # fmt: skip
        if why == "expired":
            reason = envelope.expired(delivery.envelope.headers)
            delivery.outbox.effects.append(dead_letter(delivery, reason))
        self._parts.events.revoked(delivery, expired=why == "expired")
        logger.info("%s[%s]: %s", delivery.task.name, delivery.id, why)

    def end_terminated(self, delivery: Delivery) -> None:
        """End a task that ran and was cancelled by remote control."""
        request = self._request(delivery)
        with outbox.scope(delivery.outbox):
            self._end_refused(delivery, request, "terminated")

    def end_lost(self, delivery: Delivery) -> None:
        """Fail a task whose workers died too often while they ran it, without running it again."""
        error = WorkerLost(f"its worker died {delivery.attempts} times while it ran")
        self._fail(delivery, self._request(delivery), error)
        delivery.outbox.effects.append(dead_letter(delivery, str(error)))

    def _fail(self, delivery: Delivery, request: Request, error: Exception) -> None:
        """Fail a task for something that it did not raise itself."""
        ignore = get_actual_ignore_result(delivery.task, request)
        delivery.outbox.effects.clear()
        with outbox.scope(delivery.outbox):
            delivery.task.backend.mark_as_failure(
                delivery.id, error, request=request, store_result=not ignore
            )
        self._parts.events.failed(delivery, error)
        logger.error("%s[%s]: %s", delivery.task.name, delivery.id, error)

    def _request(self, delivery: Delivery) -> Request:
        args, kwargs, embed = delivery.arguments()
        return Request(request_of(delivery, args, kwargs, embed, self._parts.hostname))

    def _rejected(self, delivery: Delivery, error: Reject) -> Again | None:
        if error.requeue:
            return Again(0, counts=False)
        reason = f"rejected by the task: {error.reason!r}"
        delivery.outbox.effects[:] = [dead_letter(delivery, reason)]
        return None


class ThreadTasks(_CeleryTasks):
    """Runs `def` tasks."""

    async def run(self, delivery: Delivery) -> Again | None:
        """Run one; what it ended with is in its outbox."""
        args, kwargs, embed = delivery.arguments()
        task = delivery.task
        request = request_of(delivery, args, kwargs, embed, self._parts.hostname)
        began = time.monotonic()
        with outbox.scope(delivery.outbox):
            try:
                self._check_startable(delivery)
            except _Refused as refused:
                self._end_refused(delivery, Request(request), str(refused))
                return None
            context = contextvars.copy_context()
        self._parts.events.started(delivery)
        if task.__trace__ is None:
            task.__trace__ = build_tracer(
                task.name, task, hostname=self._parts.hostname, app=task.app
            )
        try:
            _, info, runtime, shown = await self._parts.threads.run(
                context.run, task.__trace__, delivery.id, args, kwargs, request
            )
        except StepAborted as error:  # Celery's tracer lets pass what would end its process
            self._fail(delivery, Request(request), error)
            return None
        return self._ended(delivery, info, shown, runtime or time.monotonic() - began)

    def _ended(self, delivery: Delivery, info: Any, shown: Any, runtime: float) -> Again | None:
        if info is None:
            self._parts.events.succeeded(delivery, str(shown).encode(), runtime)
            return None
        if info.state == states.REJECTED:
            return self._rejected(delivery, info.retval)
        if info.state == states.RETRY:
            self._parts.events.retried(delivery, info.retval)
        elif info.state == states.FAILURE:
            self._parts.events.failed(delivery, info.retval)
        return None


class AsyncTasks(_CeleryTasks):
    """Runs `async def` tasks, and steps that were published as ordinary tasks."""

    def __init__(self, parts: Parts, steps: StepRunner) -> None:
        """Keep the parts."""
        super().__init__(parts)
        self._steps = steps

    async def run(self, delivery: Delivery) -> Again | None:
        """Run one; what it ended with is in its outbox."""
        args, kwargs, embed = delivery.arguments()
        request = Request(request_of(delivery, args, kwargs, embed, self._parts.hostname))
        request.__dict__[CALLED] = True
        task = delivery.task
        with Entered(task, lambda: request), outbox.scope(delivery.outbox):
            try:
                self._check_startable(delivery)
            except _Refused as refused:
                self._end_refused(delivery, request, str(refused))
                return None
            return await self._traced(delivery, request, args, kwargs)

    async def _traced(  # noqa: C901, PLR0915 -- one arm for each of Celery's states
        self, delivery: Delivery, request: Request, args: list[Any], kwargs: dict[str, Any]
    ) -> Again | None:
        task, began = delivery.task, time.monotonic()
        state, value, again = states.SUCCESS, None, None
        self._parts.events.started(delivery)
        if signals.task_prerun.receivers:
            signals.task_prerun.send(
                sender=task, task_id=delivery.id, task=task, args=args, kwargs=kwargs
            )
        try:
            if task.track_started and not get_actual_ignore_result(task, request):
                with before_it_begins():
                    await self._store_started(delivery, request)
            if task_has_custom(task, "before_start"):
                task.before_start(delivery.id, args, kwargs)
            with before_it_begins():
                args = await self._parts.joins.resolved(delivery, args)
            value = await self._call(delivery, args, kwargs)
            self._succeeded(delivery, request, value, began)
        except Reject as error:
            state, value, again = states.REJECTED, error, self._rejected(delivery, error)
        except Ignore as error:
            state, value = states.IGNORED, error
        except Retry as error:
            state, value = states.RETRY, error
            self._failed(delivery, request, states.RETRY, error)
        except asyncio.CancelledError:
            state = states.REVOKED
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a task raises is its outcome
            state, value = states.FAILURE, error
            delivery.outbox.effects.clear()
            self._failed(delivery, request, states.FAILURE, error)
        finally:
            self._after(delivery, state, value, args, kwargs)
        return again

    async def _store_started(self, delivery: Delivery, request: Request) -> None:
        document = {"pid": os.getpid(), "hostname": self._parts.hostname}
        store = delivery.task.backend.store_result
        loop = asyncio.get_running_loop()
        context = contextvars.Context()  # without the outbox: it is to be seen now
        await loop.run_in_executor(
            None, context.run, store, delivery.id, document, states.STARTED, None, request
        )

    async def _call(self, delivery: Delivery, args: list[Any], kwargs: dict[str, Any]) -> Any:
        task = delivery.task
        hard, soft = (delivery.envelope.headers.get("timelimit") or (None, None))[:2]
        hard, soft = hard or task.time_limit, soft or task.soft_time_limit
        limit = min((seconds for seconds in (hard, soft) if seconds), default=None)
        clock = asyncio.timeout(limit)
        try:
            with CONTAINED:
                async with clock:
                    if task.step is not None:
                        context = self._steps.context(delivery)
                        return await self._steps.call(delivery, context, args)
                    function = getattr(task, "_orig_run", None) or task.run
                    return await function(*args, **kwargs)
        except TimeoutError as error:
            if not clock.expired():
                self._autoretry(task, error)
                raise
            exceeded = SoftTimeLimitExceeded if limit == soft else TimeLimitExceeded
            raise exceeded(limit) from error
        except Exception as error:
            self._autoretry(task, error)
            raise

    @staticmethod
    def _autoretry(task: Any, error: Exception) -> None:
        """Let Celery's `autoretry_for` decide: it wraps `run`, which for a coroutine never raises.

        The wrapper calls `task._orig_run`; for this one call, in which nothing else runs on the
        loop, that raises what the coroutine raised.
        """
        original = getattr(task, "_orig_run", None)
        if original is None:
            return

        def reraise(*_: Any, **__: Any) -> None:
            raise error

        task._orig_run = reraise  # noqa: SLF001 -- in broker/private_names.py
        try:
            task.run()
        finally:
            task._orig_run = original  # noqa: SLF001

    def _succeeded(self, delivery: Delivery, request: Request, value: Any, began: float) -> None:
        task = delivery.task
        if task.step is not None:
            value = task.step.plain(value)
        self._publish_followers(delivery, request, value)
        store = not get_actual_ignore_result(task, request)
        task.backend.mark_as_done(delivery.id, value, request, store)
        runtime = time.monotonic() - began
        if task_has_custom(task, "on_success"):
            self._hook(task.on_success, value, delivery.id, request.args, request.kwargs)
        if signals.task_success.receivers:
            signals.task_success.send(sender=task, result=value, runtime=runtime)
        self._parts.events.succeeded(delivery, repr(value)[:200].encode(), runtime)
        if trace.logger.isEnabledFor(logging.INFO):
            shown = saferepr(value, task.resultrepr_maxsize)
            told = {"id": delivery.id, "name": task.name, "return_value": shown, "runtime": runtime}
            trace.info(trace.LOG_SUCCESS, told)  # the line of a `def` task

    def _publish_followers(self, delivery: Delivery, request: Request, value: Any) -> None:
        """Publish callbacks and the next link of the chain, as Celery's tracer does."""
        app = delivery.task.app
        options = {
            "parent_id": delivery.id,
            "root_id": request.root_id or delivery.id,
            "priority": request.delivery_info.get("priority"),
        }
        callbacks = [canvas.maybe_signature(sig, app=app) for sig in request.callbacks or ()]
        with outbox.closing():
            groups = [sig for sig in callbacks if isinstance(sig, canvas.group)]
            others = [sig for sig in callbacks if not isinstance(sig, canvas.group)]
            for sig in groups:
                sig.apply_async((value,), **options)
            if len(others) > 1:
                canvas.group(others, app=app).apply_async((value,), **options)
            elif others:
                others[0].apply_async((value,), **options)
            if request.chain:
                following = canvas.maybe_signature(request.chain[-1], app=app)
                following.apply_async((value,), chain=request.chain[:-1], **options)

    def _failed(self, delivery: Delivery, request: Request, state: str, error: Exception) -> None:
        """Store a failure or a retry with Celery's own code; must be called while it is handled."""
        info = TraceInfo(state, error)
        info.handle_error_state(
            delivery.task, request, eager=False, call_errbacks=state == states.FAILURE
        )
        if state == states.RETRY:
            self._parts.events.retried(delivery, error)
        else:
            self._parts.events.failed(delivery, error)

    def _after(
        self, delivery: Delivery, state: str, value: Any, args: Sequence[Any], kwargs: Any
    ) -> None:
        task = delivery.task
        if state in (states.SUCCESS, states.FAILURE) and task_has_custom(task, "after_return"):
            failed = state == states.FAILURE
            einfo = ExceptionInfo((type(value), value, value.__traceback__)) if failed else None
            self._hook(task.after_return, state, value, delivery.id, args, kwargs, einfo)
        if signals.task_postrun.receivers:
            signals.task_postrun.send(
                sender=task, task_id=delivery.id, task=task, args=args, kwargs=kwargs,
                retval=value, state=state,
            )  # fmt: skip

    @staticmethod
    def _hook(hook: Any, *args: Any) -> None:
        """Call a hook whose outcome no longer matters: the result stands."""
        try:
            hook(*args)
        except Exception:
            logger.exception("%s raised", getattr(hook, "__qualname__", hook))
