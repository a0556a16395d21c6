"""Calls a step's function: its context, its time, and where its kind says it runs."""

from __future__ import annotations

import asyncio
from typing import Any

from agentq.broker.context import Context
from agentq.clock import format_duration, milliseconds
from agentq.errors import DeadlineExceeded, StepTimeout
from agentq.store import calls, effects
from agentq.timing.deadline import shortest
from agentq.worker.contained import CONTAINED
from agentq.worker.delivery import Delivery
from agentq.worker.parts import Parts


class RunExpired(DeadlineExceeded):
    """This run's deadline passed; a step may raise `DeadlineExceeded` about another one."""


class StepRunner:
    """One per process."""

    def __init__(self, parts: Parts) -> None:
        """Keep the parts."""
        self._parts = parts
        self._keep_ms = milliseconds(parts.app.settings.runs.keep)

    def context(self, delivery: Delivery) -> Context:
        """Return what the step is given beside its argument."""
        parts = self._parts
        run, keep_ms = delivery.run, self._keep_ms
        cell, prefix = parts.cell, parts.cell.store.keys.prefix

        async def emit(kind: str, data: bytes) -> None:
            event = effects.event(run, kind, data)
            await cell.call(calls.complete(prefix, "", "", run, keep_ms, [event]))

        return Context(
            run_id=run,
            step=delivery.task.name,
            task_id=delivery.id,
            attempt=delivery.attempt,
            worker=parts.hostname,
            services=parts.app.services(),
            embeddings=parts.app.embeddings,
            clock=parts.clock,
            deadline=delivery.deadline,
            emit=emit if run else None,
        )

    async def call(  # noqa: C901 -- one arm for each kind of step and of time limit
        self, delivery: Delivery, context: Context, args: list[Any]
    ) -> Any:
        """Run the step's function within the time it has.

        Raises:
            StepTimeout: the step's own limit; RunExpired: its run's.
            StepAborted: it tried to end the process, or awaited what it had cancelled itself.
            asyncio.CancelledError: the step was cancelled from outside.
        """
        step = delivery.task.step
        assert step is not None  # noqa: S101 -- as above
        limit = shortest(step.timeout, context.remaining())
        arguments = step.arguments(context, args)
        if limit is None and step.kind == "async":
            with CONTAINED:
                return await step.function(*arguments)
        if step.kind != "async":
            limit = context.remaining()  # until it has a thread or process of its own
        clock = asyncio.timeout(limit.total_seconds() if limit is not None else None)

        def begins() -> None:
            nonlocal limit
            limit = shortest(step.timeout, context.remaining())
            if limit is not None:
                clock.reschedule(asyncio.get_running_loop().time() + limit.total_seconds())

        try:
            with CONTAINED:
                async with clock:
                    if step.kind == "async":
                        return await step.function(*arguments)
                    if step.kind == "cpu":
                        return await self._parts.processes.run(
                            delivery.task, arguments, begins=begins
                        )
                    return await self._parts.threads.run(step.function, *arguments, begins=begins)
        except TimeoutError as error:
            if not clock.expired():
                raise
            if step.timeout is None or limit != step.timeout:
                raise RunExpired(f"step {step.name!r} ran into its run's deadline") from error
            raise StepTimeout(
                f"step {step.name!r} did not end within its timeout of "
                f"{format_duration(step.timeout)}"
            ) from error.__cause__  # where it was, without asyncio's own part
