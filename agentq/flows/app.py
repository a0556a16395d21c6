"""`AgentQ`: what a user declares steps and flows on, and submits runs with."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from celery.exceptions import Reject

from agentq.blobs import Blobs, Endings, chosen
from agentq.broker import joins, outbox, stock
from agentq.broker.app import App
from agentq.broker.sequence import Part, sequence_of
from agentq.broker.serializer import dumps, loads
from agentq.clock import milliseconds
from agentq.errors import (
    BlobMissing,
    BlobsUnavailable,
    BrokerUnavailable,
    DefinitionError,
    UnknownFlow,
)
from agentq.flows import fitting
from agentq.flows.blob_cell import BlobCell
from agentq.flows.blob_sweeper import BlobSweeper
from agentq.flows.compiler import Compiler, Place
from agentq.flows.flow import Flow
from agentq.flows.graph import COLLECT, graph_of
from agentq.flows.pressure import Paced, Pressure
from agentq.outcome import Err, Outcome, text_of
from agentq.runs.handle import RunHandle
from agentq.settings import Settings
from agentq.store.calls import Load
from agentq.store.client import AsyncStore
from agentq.store.effects import Effect
from agentq.store.embedded import default_data_dir

T = TypeVar("T")


def _check_budget(flow: str, option: str, budget: object) -> None:
    fits = isinstance(budget, int) and not isinstance(budget, bool) and budget > 0
    if budget is not None and not fits:
        unit = option.removeprefix("max_")
        raise DefinitionError(
            f"flow {flow!r}: {option}={budget!r} is not a whole number of {unit}, 1 or more"
        )


async def _collect(outcomes: list[Outcome]) -> list[Outcome]:
    """Return the outcomes of an `each()` that nothing follows."""
    return outcomes


def _referring(effect: Effect, reference: str) -> Effect:
    """Return *effect*; of a result document, one that refers to the result instead of having it."""
    match effect:
        case ("meta", task_id, ttl_ms, bytes() as document):
            refers = loads(document) | {"result": None, "blob": reference}
            return ("meta", task_id, ttl_ms, dumps(refers))
        case _:
            return effect


class AgentQ(App):
    """An app: settings, a Celery app, steps and flows.

    ```python
    aq = AgentQ("research")

    @aq.step(pool="critical")
    async def plan(brief: Brief) -> Plan: ...

    research = aq.flow("research", plan >> each(execute, of="tasks") >> review)
    run = research.submit(Brief(...), deadline="2m")
    ```
    """

    def __init__(
        self,
        name: str = "agentq",
        *,
        settings: Settings | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        """Declare an app; nothing is connected before something is sent. Arguments: see `App`."""
        super().__init__(name, settings=settings, overrides=overrides)
        self.flows: dict[str, Flow] = {}
        self.pressure = Pressure()
        self._async_stores = threading.local()
        self._blob_sweeper = BlobSweeper(app=self)
        self._declare(_collect, name=COLLECT)

    def flow(
        self,
        name: str,
        part: Part,
        *,
        max_members: int | None = None,
        max_bytes: int | None = None,
    ) -> Flow:
        """Declare a flow: steps joined by ``>>``, fan-outs by `each(...)`.

        Args:
            name: what it is submitted and shown by.
            part: the steps.
            max_members: members of all fan-outs of a run together; None: ``runs.max_members``.
            max_bytes: messages and outcomes of a run together; None: ``runs.max_bytes``. A run that
                needs more of either fails with `RunTooLarge`.

        Raises:
            DefinitionError: the name is taken, a part is no step or can not take what the one
                before it gives, or it begins with `each`.
        """
        if name in self.flows:
            raise DefinitionError(f"flow {name!r} is declared twice")
        for option, budget in (("max_members", max_members), ("max_bytes", max_bytes)):
            _check_budget(name, option, budget)
        sequence = sequence_of(part)
        graph = graph_of(name, sequence)
        graph = replace(graph, max_members=max_members, max_bytes=max_bytes)
        for step in graph.steps():
            if step not in self.steps:
                raise DefinitionError(f"flow {name!r}: step {step!r} belongs to another app")
        fitting.check(name, sequence)
        self.flows[name] = Flow(app=self, graph=graph)
        return self.flows[name]

    def get_flow(self, name: str) -> Flow:
        """Return the flow called *name*.

        Raises:
            UnknownFlow: there is none; the text names those that are.
        """
        try:
            return self.flows[name]
        except KeyError:
            known = ", ".join(sorted(self.flows)) or "none"
            raise UnknownFlow(f"app {self.name!r} has no flow {name!r}; it has: {known}") from None

    def run(self, run_id: str) -> RunHandle:
        """Return the handle of a run by its id; whether it exists shows when it is asked."""
        return self.handle(run_id, loads)

    def handle(
        self,
        run_id: str,
        decode: Callable[[bytes], Any],
        *,
        duplicate: bool = False,
        load: Load | None = None,
    ) -> RunHandle:
        """Return a handle whose result *decode* reads; *load*: of the queue it was put into."""
        return RunHandle(
            run_id=run_id,
            store=self.store,
            async_store=self.async_store,
            decode=decode,
            blobs=self.blobs,
            keep_ms=milliseconds(self.settings.runs.keep),
            duplicate=duplicate,
            load=load,
        )

    def paced(self, items: Iterable[T] | AsyncIterable[T]) -> Paced[T]:
        """Return *items* to loop over, slowed down while the queue they are submitted to fills.

        ```python
        for ticket in aq.paced(tickets):
            answer.submit(ticket)
        ```

        Before each item it pauses for what this app submitted since the one before, by the last
        fill that a submit was told. ``async for`` pauses without holding up the event loop.
        """
        return Paced(items, self.pressure)

    def async_store(self) -> AsyncStore:
        """Return the cell, for callers on this thread's event loop."""
        import asyncio  # noqa: PLC0415 -- a blocking producer has no use for it

        loop = asyncio.get_running_loop()
        held = getattr(self._async_stores, "held", None)
        if held is None or held[0] is not loop:
            store = AsyncStore(address=self.address, timeout=self.settings.broker.timeout)
            self._async_stores.held = held = (loop, store)
        return held[1]

    async def aclose(self) -> None:
        """Close what the awaitable calls on this event loop opened; safe twice."""
        held, self._async_stores.held = getattr(self._async_stores, "held", None), None
        if held is not None:
            await held[1].close()

    @cached_property
    def blobs(self) -> Blobs:
        """Return where payloads beyond `broker.max_payload` are kept."""
        settings = self.settings
        return Blobs(
            store=chosen(settings, default=self._blobs_folder),
            cell=BlobCell(app=self),
            max_payload=settings.broker.max_payload,
            max_size=settings.blobs.max_size,
            timeout=settings.blobs.timeout,
        )

    @cached_property
    def blob_endings(self) -> Endings:
        """Return what writes the blobs of steps that have ended."""
        return Endings(blobs=self.blobs, limit=self.settings.blobs.write_limit)

    def _blobs_folder(self) -> Path:
        return (self.settings.embedded.data_dir or default_data_dir()) / "blobs"

    @cached_property
    def compiler(self) -> Compiler:
        """Return what turns the end of a step into effects."""
        runs = self.settings.runs
        return Compiler(
            steps=self.steps,
            limits=runs,
            max_payload=self.settings.broker.max_payload,
            blobs=self.blobs,
            keep_ms=milliseconds(runs.keep),
            join_ttl_ms=milliseconds(runs.join_ttl),
        )

    def resolve_joins(
        self, args: Sequence[Any], ours: Mapping[str, Any] | None = None
    ) -> tuple[Any, ...]:
        """Return *args* with what they refer to: an argument in blob storage, a fan-in's results.

        Raises:
            BlobMissing: an argument is lost.
            Reject: one can not be read now: the message is handed out again.
        """
        try:
            if reference := (ours or {}).get(joins.BLOB):
                return (loads(self.blobs.get(reference)), *args[1:])
            resolved = super().resolve_joins(args, ours)
            for value in resolved:
                if isinstance(value, joins.Outcomes):
                    self._read(value)
        except BlobsUnavailable as error:
            raise Reject(str(error), requeue=True) from error
        return resolved

    def _read(self, outcomes: joins.Outcomes) -> None:
        for outcome in outcomes.in_blobs():
            try:
                joins.fill(outcome, self.blobs.get(outcome[joins.BLOB]))
            except BlobMissing as error:
                joins.fill(outcome, error)

    def step_ended(self, request: Any, state: str, result: Any) -> None:
        """Add what follows in the run when a stock tracer ended a step."""
        ours = getattr(request, "aq", None) or {}
        box = outbox.sink()
        if box is None or "flow" not in ours:
            return
        place = Place.of(ours, request.id)
        outcome: bytes | Err
        if state == "SUCCESS":
            outcome = dumps(result)
        else:
            attempts = stock.attempt_of(request)
            outcome = Err(type(result).__name__, text_of(result), request.task, attempts=attempts)
        self.compiler.ended(self.get_flow(place.flow).graph, place, outcome, box)
        if box.blobs and isinstance(outcome, bytes):
            self._store(place.run, outcome, box)

    def _store(self, run: str, result: bytes, box: outbox.Outbox) -> None:
        """Write the blobs of a step's end; its result document may refer to one as well.

        Raises:
            Reject: they could not be written in time: the message is handed out again.
        """
        if reference := self.compiler.reference_to(run, result, box.blobs):
            box.effects[:] = [_referring(effect, reference) for effect in box.effects]
        try:
            self.blob_endings.put(box.blobs)
        except (BlobsUnavailable, BrokerUnavailable) as error:
            raise Reject(str(error), requeue=True) from error
