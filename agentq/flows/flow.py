"""A declared flow, and how runs of it are submitted: one call to Redis each, or many at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from agentq.broker import routing, serializer
from agentq.clock import DurationLike, parse_duration
from agentq.errors import InvalidArgument, PayloadTooLarge, QueueFull
from agentq.flows.graph import Graph, StepNode
from agentq.runs.handle import RunHandle
from agentq.runs.record import run_id_of
from agentq.store import calls, effects
from agentq.store.calls import Accepted, Admission, Call, Duplicate, Full, NewRun

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ

_AT_ONCE = 500
"""Submits sent in one round trip by `submit_many`."""


class Flow:
    """Made by `AgentQ.flow`."""

    def __init__(self, *, app: AgentQ, graph: Graph) -> None:
        """Keep the parts."""
        self._app = app
        self.graph = graph

    @property
    def name(self) -> str:
        """Return its name."""
        return self.graph.name

    def submit(
        self,
        argument: Any = None,
        *,
        key: str | None = None,
        deadline: DurationLike | None = None,
        priority: str | None = None,
        tenant: str | None = None,
    ) -> RunHandle:
        """Start a run; returns once it is accepted.

        Args:
            argument: what the first step is given.
            key: the same key (of the same tenant) is the same run, as long as it is kept; without
                one each call is a new run.
            deadline: from now; no step starts and no result is accepted behind it.
            priority: lane of the first step: ``high``, ``normal``, ``low`` or ``long``.
            tenant: whose work it is.

        Raises:
            QueueFull: nothing was accepted; come back after its `retry_after`.
            InvalidArgument: the first step's annotation forbids the argument.
            PayloadTooLarge, BrokerUnavailable, BrokerNotConfigured
        """
        run, call = self._call(argument, key, deadline, priority, tenant)
        return self._answer(run, self._app.store.call(call))

    async def asubmit(
        self,
        argument: Any = None,
        *,
        key: str | None = None,
        deadline: DurationLike | None = None,
        priority: str | None = None,
        tenant: str | None = None,
    ) -> RunHandle:
        """Start a run from an event loop; arguments and errors as in `submit`."""
        run, call = self._call(argument, key, deadline, priority, tenant)
        return self._answer(run, await self._app.async_store().call(call))

    def submit_many(
        self,
        arguments: Iterable[Any],
        *,
        keys: Sequence[str] | None = None,
        deadline: DurationLike | None = None,
        priority: str | None = None,
        tenant: str | None = None,
    ) -> list[RunHandle]:
        """Start one run for each argument, 500 to a round trip; each is accepted on its own.

        Args:
            arguments: what each first step is given.
            keys: one key for each argument, or None.
            deadline: of each run, from now.
            priority: lane of each first step.
            tenant: whose work it is.

        Raises:
            QueueFull: from the first refused one on; `accepted` handles are in its ``accepted``.
        """
        handles: list[RunHandle] = []
        batch: list[tuple[str, Call]] = []
        for number, argument in enumerate(arguments):
            key = keys[number] if keys is not None else None
            batch.append(self._call(argument, key, deadline, priority, tenant))
            if len(batch) == _AT_ONCE:
                self._send(batch, handles)
                batch = []
        self._send(batch, handles)
        return handles

    def _send(self, batch: list[tuple[str, Call]], handles: list[RunHandle]) -> None:
        if not batch:
            return
        replies = self._app.store.pipeline([call for _, call in batch])
        for (run, _), reply in zip(batch, replies, strict=True):
            try:
                if isinstance(reply, Exception):
                    raise reply
                handles.append(self._answer(run, reply))
            except QueueFull as error:
                error.accepted = list(handles)
                raise

    def _call(
        self,
        argument: Any,
        key: str | None,
        deadline: DurationLike | None,
        priority: str | None,
        tenant: str | None,
    ) -> tuple[str, Call]:
        app = self._app
        settings = app.settings
        run = run_id_of(self.name, key, tenant) if key is not None else uuid4().hex
        body = app.steps[self.graph.first.step].encode_argument(argument)
        if len(body) > settings.broker.max_payload:
            raise PayloadTooLarge(
                f"flow {self.name!r}: the argument is {len(body)} bytes as JSON; "
                f"broker.max_payload is {settings.broker.max_payload}: pass a reference instead"
            )
        message = app.compiler.first(self.graph, run, body)
        if priority is not None:
            routing.priority_of(priority)
            message = message._replace(lane=priority)
        # 0 would mean no deadline: one that is over at once is a millisecond away.
        within = max(1, self._ms(parse_duration(deadline))) if deadline is not None else 0
        record = {"flow": self.name, "v": 1}
        if key is not None:
            record["key"] = key
        if tenant is not None:
            record["tenant"] = tenant
        admission = Admission("", 0, message.pool, message.lane, settings.broker.max_length)
        new_run = NewRun(run, serializer.dumps(record), -within, self._keep_ms)
        prefix = app.store.keys.prefix
        return run, calls.enqueue(prefix, admission, [effects.put(message)], run=new_run)

    @staticmethod
    def _ms(duration: timedelta) -> int:
        return int(duration.total_seconds() * 1000)

    @cached_property
    def _keep_ms(self) -> int:
        return self._ms(self._app.settings.runs.keep)

    def _answer(self, run: str, reply: list[Any]) -> RunHandle:
        match calls.enqueued(reply):
            case Accepted():
                return self._app.handle(run, self._decode)
            case Duplicate():
                return self._app.handle(run, self._decode, duplicate=True)
            case Full(depth):
                raise QueueFull(
                    self._app.steps[self.graph.first.step].pool,
                    depth=depth,
                    limit=self._app.settings.broker.max_length,
                    retry_after=timedelta(seconds=1),
                )

    @cached_property
    def _result(self) -> TypeAdapter[Any] | None:
        last = next(
            node for node in reversed(self.graph.nodes)
            if isinstance(node, StepNode) and node.next is None
        )  # fmt: skip
        return self._app.steps[last.step].result_adapter

    def _decode(self, data: bytes) -> Any:
        value = serializer.loads(data)
        if self._result is None:
            return value
        try:
            return self._result.validate_python(value)
        except ValidationError as error:
            raise InvalidArgument(
                f"flow {self.name!r}: the result does not fit this version's type: {error}"
            ) from error
