"""How each system is asked for the same work; loaded inside the producing process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

Payload = dict[str, Any]
# About 200 bytes of JSON: what a small tool call of an agent carries.
PAYLOAD: Payload = {
    "run_id": "0123456789abcdef" * 2,
    "step": "tool_call",
    "args": {"q": "x" * 110},
    "n": 1,
}
MEMBERS = 20  # parallel steps of one pipeline
PIPELINE_STEPS = 1 + MEMBERS + 1
RESULT_TIMEOUT_S = 10.0


class Caller(Protocol):
    """One system under test.

    Attributes:
        singles: ways to enqueue one no-op; the one named ``""`` is the headline.
        bulks: ways to enqueue many no-ops, with the payload and how many.
    """

    singles: dict[str, Callable[[Payload], object]]
    bulks: dict[str, Callable[[Payload, int], object]]

    def sleepers(self, n: int, seconds: float) -> None:
        """Enqueue *n* steps that sleep."""

    def call(self, payload: Payload) -> float:
        """Run one step and return its result: when it started (`time.monotonic()`)."""

    def fan_in(self, width: int) -> None:
        """Enqueue *width* members and a body that gets all their results."""

    def pipelines(self, n: int) -> None:
        """Enqueue *n* runs of plan -> `MEMBERS` x 50 ms -> review."""


class CeleryCaller:
    """Plain Celery: `delay`, `group`, `chord`, `chain`."""

    def __init__(self) -> None:
        """Connect nothing yet; Celery does at the first message."""
        from agentq.ops.bench import celery_app  # noqa: PLC0415 - only the measured system loads

        self._app = celery_app
        self.singles: dict[str, Callable[[Payload], object]] = {"": celery_app.noop.delay}
        self.bulks: dict[str, Callable[[Payload, int], object]] = {
            "": partial(self._group, celery_app.noop)
        }

    def sleepers(self, n: int, seconds: float) -> None:
        """Enqueue *n* steps that sleep."""
        self._group(self._app.sleeper, seconds, n)

    def call(self, payload: Payload) -> float:
        """Run one step and return when it started."""
        return float(self._app.stamp.delay(payload).get(timeout=RESULT_TIMEOUT_S))

    def fan_in(self, width: int) -> None:
        """Enqueue a chord."""
        from celery import chord  # noqa: PLC0415

        chord(self._app.child.s(index) for index in range(width))(self._app.final.s())

    def pipelines(self, n: int) -> None:
        """Enqueue *n* chains that end in a chord."""
        from celery import chain, chord  # noqa: PLC0415

        for _ in range(n):
            members = [self._app.execute.si(index) for index in range(MEMBERS)]
            chain(self._app.plan.si(), chord(members, self._app.review.s())).apply_async()

    @staticmethod
    def _group(task: Any, argument: object, n: int) -> None:
        from celery import group  # noqa: PLC0415

        group([task.s(argument) for _ in range(n)]).apply_async()


class AgentQCaller:
    """agentq: flows, and beside them steps and plain tasks by `delay`."""

    def __init__(self) -> None:
        """Load the app; the broker's address comes from the environment."""
        from agentq.ops.bench import agentq_app  # noqa: PLC0415 - only the measured system loads

        self._app = agentq_app
        self.singles: dict[str, Callable[[Payload], object]] = {
            "": agentq_app.noop_flow.submit,
            "step.delay": agentq_app.noop.delay,
            "@app.task": agentq_app.noop_task.delay,
        }
        self.bulks: dict[str, Callable[[Payload, int], object]] = {
            "": self._submit_many,
            "@app.task": self._delay_each,
        }

    def sleepers(self, n: int, seconds: float) -> None:
        """Enqueue *n* steps that sleep."""
        self._app.sleeper_flow.submit_many([seconds] * n)

    def call(self, payload: Payload) -> float:
        """Run one step and return when it started."""
        return float(self._app.stamp_flow.submit(payload).result(timeout=RESULT_TIMEOUT_S))

    def fan_in(self, width: int) -> None:
        """Submit a flow whose first step returns the members."""
        self._app.fanin_flow.submit(width)

    def pipelines(self, n: int) -> None:
        """Submit *n* runs."""
        self._app.pipeline_flow.submit_many([MEMBERS] * n)

    def _submit_many(self, payload: Payload, n: int) -> None:
        self._app.noop_flow.submit_many([payload] * n)

    def _delay_each(self, payload: Payload, n: int) -> None:
        for _ in range(n):
            self._app.noop_task.delay(payload)


def caller(system: str) -> Caller:
    """Return the caller of *system*, ``celery`` or ``agentq``."""
    callers: dict[str, Callable[[], Caller]] = {"celery": CeleryCaller, "agentq": AgentQCaller}
    return callers[system]()
