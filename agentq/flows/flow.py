"""A declared flow, and how runs of it are submitted: one call to Redis each, or many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from agentq.broker import routing, serializer
from agentq.broker.publisher import refused
from agentq.clock import DurationLike, milliseconds
from agentq.errors import InvalidArgument, NotReplicated, QueueFull
from agentq.flows.graph import Graph, StepNode
from agentq.flows.pressure import Patience, batch_size
from agentq.runs.handle import RunHandle
from agentq.runs.options import duration_of, text_of
from agentq.runs.record import run_id_of
from agentq.store import calls, effects
from agentq.store.calls import Accepted, Admission, Call, Duplicate, Full, NewRun
from agentq.store.replication import unconfirmed

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ

Durable = Literal["primary", "replica"]
"""Who must have a run before a submit returns."""

_AT_ONCE = 500
"""Submits sent in one round trip by `submit_many`."""


class _New(NamedTuple):
    """A run that is about to be submitted."""

    run: str
    call: Call
    blobs: dict[str, bytes]
    """What is to be written before: its argument, where that is large."""


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

    @property
    def pools(self) -> frozenset[str]:
        """Return the pools that its steps run in."""
        return frozenset(self._app.steps[step].pool for step in self.graph.steps())

    def submit(  # noqa: PLR0913 -- options by name
        self,
        argument: Any = None,
        *,
        key: str | None = None,
        deadline: DurationLike | None = None,
        priority: str | None = None,
        tenant: str | None = None,
        wait: DurationLike | None = None,
        durable: Durable | None = None,
    ) -> RunHandle:
        """Start a run; returns once it is accepted.

        Args:
            argument: what the first step is given.
            key: the same key (of the same tenant) is the same run, as long as it is kept; without
                one each call is a new run.
            deadline: from now; no step starts and no result is accepted behind it.
            priority: lane of the first step: ``high``, ``normal``, ``low`` or ``long``.
            tenant: whose work it is.
            wait: how long to wait for room in a full queue; None: not at all.
            durable: who must have the run before this returns: the ``primary``, or a ``replica``
                too, so that no failover loses it; None: ``broker.durable``.

        Raises:
            QueueFull: nothing was accepted; come back after its `retry_after`.
            NotReplicated: accepted, but no replica has it within ``broker.timeout``; the same key
                again is safe.
            InvalidArgument: the first step's annotation forbids the argument; `InvalidOption`:
                another one is nothing that it may be.
            PayloadTooLarge, BlobsUnavailable, BrokerUnavailable, BrokerNotConfigured
        """
        new = self._new(argument, key, deadline, priority, tenant)
        replicated = self._replicated(durable)
        if new.blobs:
            self._app.blobs.put(new.blobs)
        patience = Patience(wait)
        while True:
            try:
                if not replicated:
                    return self._answer(new.run, self._app.store.call(new.call))
                (reply,), confirmed = self._app.store.replicated([new.call])
                return self._checked(self._answer(new.run, reply), confirmed=confirmed)
            except QueueFull as full:
                time.sleep(patience.pause(full))

    async def asubmit(  # noqa: PLR0913 -- options by name
        self,
        argument: Any = None,
        *,
        key: str | None = None,
        deadline: DurationLike | None = None,
        priority: str | None = None,
        tenant: str | None = None,
        wait: DurationLike | None = None,
        durable: Durable | None = None,
    ) -> RunHandle:
        """Start a run from an event loop; arguments and errors as in `submit`."""
        new = self._new(argument, key, deadline, priority, tenant)
        replicated = self._replicated(durable)
        if new.blobs:
            await self._app.blobs.aput(new.blobs)
        patience = Patience(wait)
        while True:
            try:
                if not replicated:
                    return self._answer(new.run, await self._app.async_store().call(new.call))
                (reply,), confirmed = await self._app.async_store().replicated([new.call])
                return self._checked(self._answer(new.run, reply), confirmed=confirmed)
            except QueueFull as full:
                await asyncio.sleep(patience.pause(full))

    def submit_many(  # noqa: PLR0913 -- options by name
        self,
        arguments: Iterable[Any],
        *,
        keys: Sequence[str] | None = None,
        deadline: DurationLike | None = None,
        priority: str | None = None,
        tenant: str | None = None,
        wait: DurationLike | None = None,
        durable: Durable | None = None,
    ) -> list[RunHandle]:
        """Start one run for each argument, many to a round trip; each is accepted on its own.

        From half of a cap on it slows down to what the pool completes.

        Args:
            arguments: what each first step is given.
            keys: one key for each argument, or None.
            deadline: of each run, from now.
            priority: lane of each first step.
            tenant: whose work it is.
            wait: how long to wait for room, all in all, where the queue is full all the same.
            durable: as in `submit`; a replica is waited for once for each round trip.

        Raises:
            QueueFull: some were refused; the handles of the others are in its ``accepted``.
            NotReplicated: no replica has the last of those in its ``accepted``.
        """
        replicated = self._replicated(durable)
        made = (
            self._new(argument, keys[at] if keys is not None else None, deadline, priority, tenant)
            for at, argument in enumerate(arguments)
        )
        limit, pressure = self._app.settings.broker.max_length, self._app.pressure
        handles: list[RunHandle] = []
        patience = Patience(wait)
        pressure.forget()
        size = batch_size(None, most=_AT_ONCE, limit=limit)
        while batch := list(islice(made, size)):
            try:
                handles += self._send(batch, patience, replicated=replicated)
            except (QueueFull, NotReplicated) as refusal:
                refusal.accepted[:0] = handles
                raise
            size = batch_size(pressure.last, most=_AT_ONCE, limit=limit)
            time.sleep(pressure.pause())
        return handles

    def _send(self, batch: list[_New], patience: Patience, *, replicated: bool) -> list[RunHandle]:
        """Submit *batch*, what is refused again and again until *patience* ends."""
        if large := {name: data for new in batch for name, data in new.blobs.items()}:
            self._app.blobs.put(large)
        handles: dict[int, RunHandle] = {}
        while True:
            left = [(place, new) for place, new in enumerate(batch) if place not in handles]
            sent, confirmed = [new.call for _, new in left], True
            if replicated:
                replies, confirmed = self._app.store.replicated(sent)
            else:
                replies = self._app.store.pipeline(sent)
            refusal: QueueFull | None = None
            for (place, new), reply in zip(left, replies, strict=True):
                try:
                    handles[place] = self._answer(new.run, reply)
                except QueueFull as full:
                    refusal = full
            done = [handles[place] for place in sorted(handles)]
            if done and not confirmed:
                raise self._unconfirmed(done)
            if refusal is None:
                return done
            refusal.accepted = list(done)
            time.sleep(patience.pause(refusal))

    def _new(
        self,
        argument: Any,
        key: str | None,
        deadline: DurationLike | None,
        priority: str | None,
        tenant: str | None,
    ) -> _New:
        app = self._app
        settings = app.settings
        if key == "":  # a variable that is not set would make one run of all
            raise InvalidArgument("key='' would be one run for all: give each its key, or None")
        for option, given in (("key", key), ("tenant", tenant)):
            if given is not None:
                text_of(option, given)
        run = run_id_of(self.name, key, tenant) if key is not None else uuid4().hex
        body = app.steps[self.graph.first.step].encode_argument(argument)
        blobs: dict[str, bytes] = {}
        message = app.compiler.first(self.graph, run, body, blobs)
        if priority is not None:
            routing.priority_of(priority)
            message = message._replace(lane=priority)
        # 0 would mean no deadline: one that is over at once is a millisecond away.
        within = (
            max(1, milliseconds(duration_of("deadline", deadline))) if deadline is not None else 0
        )
        record = {"flow": self.name, "v": 1}
        if key is not None:
            record["key"] = key
        if tenant is not None:
            record["tenant"] = tenant
        broker, runs = settings.broker, settings.runs
        admission = Admission(
            "", 0, message.pool, message.lane, broker.max_length, broker.max_bytes,
            tenant or "", broker.max_per_tenant or 0,
        )  # fmt: skip
        new_run = NewRun(
            run, serializer.dumps(record), -within, self._keep_ms,
            self.graph.max_members or runs.max_members, self.graph.max_bytes or runs.max_bytes,
        )  # fmt: skip
        work = [effects.put(message)]
        if blobs:
            work.insert(0, effects.spend(len(body)))
        return _New(run, calls.enqueue(app.store.keys.prefix, admission, work, run=new_run), blobs)

    @cached_property
    def _keep_ms(self) -> int:
        return milliseconds(self._app.settings.runs.keep)

    def _replicated(self, durable: Durable | None) -> bool:
        chosen = durable or self._app.settings.broker.durable
        if chosen not in get_args(Durable):
            known = " or ".join(get_args(Durable))
            raise InvalidArgument(f"flow {self.name!r}: durable={chosen!r} is not {known}")
        return chosen == "replica"

    def _checked(self, handle: RunHandle, *, confirmed: bool) -> RunHandle:
        if not confirmed:
            raise self._unconfirmed([handle])
        return handle

    def _unconfirmed(self, handles: list[RunHandle]) -> NotReplicated:
        what = f"run {handles[0].id} is" if len(handles) == 1 else f"{len(handles)} runs are"
        return unconfirmed(what, self._app.settings.broker.timeout, handles)

    def _answer(self, run: str, reply: Any) -> RunHandle:
        if isinstance(reply, Exception):
            raise reply
        match calls.enqueued(reply):
            case Accepted() as accepted:
                self._app.pressure.note(accepted)
                return self._app.handle(run, self._decode, load=accepted.load)
            case Duplicate():
                return self._app.handle(run, self._decode, duplicate=True)
            case Full() as full:
                self._app.pressure.refused()
                raise refused(self._app.steps[self.graph.first.step].pool, full)

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
