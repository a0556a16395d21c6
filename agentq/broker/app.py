"""`App`: the settings, the Celery app that goes with them, and `@app.step`.

The Celery app is an ordinary one (`app.celery`): `@app.celery.task`, `delay`, chains, groups and
chords work; it publishes through `Publisher`, and a worker started from it runs our loop unless a
stock pool is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, TypeVar, overload

from celery import Celery, signals

from agentq.broker import joins, pools, routing, serializer, stock
from agentq.broker.batched import Batches, ListFunction, one_at_a_time
from agentq.broker.declared import check_function, check_options, duration, refuse_steps
from agentq.broker.publisher import Publisher
from agentq.broker.services import Services
from agentq.broker.step import Step, kind_of
from agentq.broker.task import Task
from agentq.broker.warming import Warmer, warmer
from agentq.clock import DurationLike, milliseconds, parse_duration
from agentq.errors import DefinitionError
from agentq.settings import Settings, load_settings
from agentq.store import fail_points, skew
from agentq.store.address import Address, parse
from agentq.store.client import Store
from agentq.store.locate import broker_url

signals.worker_process_init.connect(skew.leave_it_to_another)

StepFunction = Callable[..., Any]
F = TypeVar("F", bound=Callable[[], Any])
_DEFAULT_BACKOFF = timedelta(seconds=1)
EMBED = "agentq.embed"
"""Name of the built-in batching task."""

PLACEHOLDER = "agentq://"
"""The broker URL in Celery's configuration: an app can be declared before a broker runs."""


class CeleryApp(Celery):  # type: ignore[misc]
    """A Celery app that belongs to an `App`."""

    task_cls = "agentq.broker.task:Task"
    amqp_cls = "agentq.broker.amqp:AMQP"

    aq: App
    """The app it belongs to; set right after it is made."""

    def producer_or_acquire(self, producer: Any = None) -> AbstractContextManager[Any]:
        """Return what tasks are published with."""
        if producer is not None:
            return nullcontext(producer)
        return Publisher(store=self.aq.store, settings=self.aq.settings)

    def task(self, *args: Any, **options: Any) -> Any:
        """Make an ordinary task, as Celery does.

        Raises:
            DefinitionError: it is a step already.
        """
        refuse_steps(args)
        return super().task(*args, **options)

    def _connection(self, url: str, **options: Any) -> Any:
        """Return a kombu connection; our placeholder URL becomes where the broker is now."""
        from agentq.broker.transport import kombu_connection  # noqa: PLC0415 -- rarely needed

        if url != PLACEHOLDER:
            return super()._connection(url, **options)
        return kombu_connection(self, self.aq.address, options)

    def Worker(  # noqa: N802 -- Celery's name
        self, *args: Any, pool: Any = None, **options: Any
    ) -> Any:
        """Make what `celery worker` starts: ours, or Celery's where a stock pool is asked for."""
        chosen = pools.chosen(
            pool or options.get("pool_cls"), stock=self.aq.settings.worker.stock_pool
        )
        # By name, as Celery names its own: a producer never imports the worker.
        worker = self.subclass_with_self(pools.worker_of(chosen))
        return worker(*args, **options | {"pool_cls": chosen})

    # -- what backend and task ask ----------------------------------------------------------------

    @property
    def keep_ms(self) -> int:
        """Return how long an ended run is kept."""
        return milliseconds(self.aq.settings.runs.keep)

    @property
    def join_ttl_ms(self) -> int:
        """Return how long a join waits for its members."""
        return milliseconds(self.aq.settings.runs.join_ttl)

    def step_ended(self, request: Any, state: str, result: Any) -> None:
        """Add what follows in the run when a stock tracer ended a step."""
        self.aq.step_ended(request, state, result)

    def resolve_joins(
        self, args: Sequence[Any], ours: Mapping[str, Any] | None = None
    ) -> tuple[Any, ...]:
        """Return *args* with a fan-in's reference replaced by its results."""
        return self.aq.resolve_joins(args, ours)

    def run_step(self, task: Task, args: tuple[Any, ...]) -> Any:
        """Run a step under a stock tracer."""
        return stock.run_step(self.aq, task, args)


class App:
    """Settings, Celery app and steps; `AgentQ` adds flows."""

    def __init__(
        self,
        name: str = "agentq",
        *,
        settings: Settings | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        """Declare an app; nothing is connected before something is sent.

        Args:
            name: prefix of task names declared in `__main__`, and the name Flower shows.
            settings: all settings; else they are loaded (`agentq settings` prints them).
            overrides: dotted settings that beat the loaded ones, e.g. ``{"worker.slots": 50}``.
        """
        serializer.install()
        self.name = name
        self.settings = settings or load_settings(overrides=overrides)
        fail_points.chosen()  # one that there is not is refused here, as a wrong setting is
        self.steps: dict[str, Step] = {}
        self.batches: list[Batches] = []
        self.warmers: list[Warmer] = []
        self._services: dict[int, Services] = {}
        self.celery = CeleryApp(name, set_as_current=True)
        self.celery.aq = self
        self.celery.conf.update(_configuration(self.settings))
        self.embed = self.batched(name=EMBED)(self._embed)
        """The batching task behind `Context.embed`; `aq.embed.delay(text)` works from anywhere."""
        self.embeddings = self.batches[0]

    # -- where the broker is ----------------------------------------------------------------------

    @cached_property
    def address(self) -> Address:
        """Return where the cell is.

        Raises:
            BrokerNotConfigured: no broker is set and no embedded one runs.
        """
        return parse(self.broker_url, cell=self.settings.broker.cell)

    @property
    def broker_url(self) -> str:
        """Return the broker's URL: the one that is set, else the embedded server's."""
        return broker_url(self.settings)

    @cached_property
    def store(self) -> Store:
        """Return the cell, as producers see it."""
        return Store(address=self.address, timeout=self.settings.broker.timeout)

    def services(self) -> Services:
        """Return what the steps on this thread's loop share."""
        key = threading.get_ident()
        if key not in self._services:
            self._services[key] = Services(settings=self.settings)
        return self._services[key]

    async def _embed(self, texts: list[str]) -> Sequence[list[float]]:
        return await self.services().embed(texts)

    async def close_services(self) -> None:
        """End what the steps on this loop shared; safe twice."""
        for batches in self.batches:
            await batches.close()
        if services := self._services.pop(threading.get_ident(), None):
            await services.close()  # forgotten: another thread may get this one's number

    # -- steps ------------------------------------------------------------------------------------

    @overload
    def step(self, function: StepFunction, /) -> Task: ...

    @overload
    def step(
        self,
        /,
        *,
        name: str | None = None,
        pool: str = "shared",
        lane: str = routing.DEFAULT_LANE,
        timeout: DurationLike | None = None,
        retries: int = 0,
        backoff: DurationLike = _DEFAULT_BACKOFF,
        kind: str | None = None,
    ) -> Callable[[StepFunction], Task]: ...

    def step(self, function: StepFunction | None = None, /, **options: Any) -> Any:
        """Declare a step: an `async def`, or a `def` that runs in a thread or a process.

        Args:
            function: the step, when used without arguments.
            **options: ``name`` (default: module and function), ``pool`` (a pool of the settings),
                ``lane`` (high, normal, long, low), ``timeout`` of one attempt, ``retries`` after
                an exception, ``backoff`` before the first of them (doubles, with jitter), ``kind``
                (``"thread"`` or ``"cpu"`` for a plain `def`).

        Raises:
            DefinitionError: an option, the pool, lane or kind is unknown, the name is taken, or
                the function takes more than one argument.
        """
        if function is not None:
            return self._declare(function)

        def declare(declared: StepFunction) -> Task:
            check_options(declared, options)
            return self._declare(declared, **options)

        return declare

    def _declare(  # noqa: PLR0913 -- the options of `step`
        self,
        function: StepFunction,
        *,
        name: str | None = None,
        pool: str = "shared",
        lane: str = routing.DEFAULT_LANE,
        timeout: DurationLike | None = None,
        retries: int = 0,
        backoff: DurationLike = _DEFAULT_BACKOFF,
        kind: str | None = None,
    ) -> Task:
        check_function(function)
        full = name or self.celery.gen_task_name(function.__name__, function.__module__)
        if pool not in self.settings.pools:
            raise DefinitionError(
                f"step {full!r}: pool {pool!r} is not in the settings "
                f"({', '.join(sorted(self.settings.pools))}); add [pools.{pool}]"
            )
        routing.priority_of(lane)
        if full in self.steps:
            raise DefinitionError(f"step {full!r} is declared twice: give one of them a name=")
        step = Step(
            full,
            function,
            kind_of(function, kind),
            pool,
            lane,
            duration(full, "timeout", timeout) if timeout is not None else None,
            retries,
            duration(full, "backoff", backoff),
        )
        self.steps[full] = step
        return self.celery.task(  # type: ignore[no-any-return]
            name=full, lazy=False, shared=False, typing=False, step=step, serializer=serializer.NAME
        )(function)

    def batched(
        self,
        *,
        max_items: int | None = None,
        window: DurationLike | None = None,
        **options: Any,
    ) -> Callable[[ListFunction], Task]:
        """Declare a batching task: an `async def` from a list to a list of the same length.

        Args:
            max_items: most items in one call; None: ``batch.max_items``.
            window: how long an item waits for company; None: ``batch.window``.
            **options: as for `step`: each item is a step of its own.

        Raises:
            DefinitionError: the function is no `async def`, or what `step` refuses.
        """
        batch = self.settings.batch

        def declare(function: ListFunction) -> Task:
            check_options(function, options)
            batches = Batches(
                name=options.get("name") or function.__name__,
                function=function,
                max_items=max_items or batch.max_items,
                window=parse_duration(window) if window is not None else batch.window,
            )
            self.batches.append(batches)
            return self._declare(one_at_a_time(function, batches), **options)

        return declare

    @overload
    def warm(self, function: F, /) -> F: ...

    @overload
    def warm(self, /, *, kind: str = "worker") -> Callable[[F], F]: ...

    def warm(self, function: Any = None, /, *, kind: str = "worker") -> Any:
        """Declare what a worker does before it is ready, so that no first step waits for it.

        Imports, connections, tables, the model client (``await aq.services().client()``). What
        fails is said and left out. Under Celery's own pools each runs where tasks do (README).

        Args:
            function: one without arguments: an `async def` runs on the steps' loop, a `def` in a
                thread.
            kind: ``"cpu"``: in each process for steps of that kind, also in one that takes
                another's place; a `def`.

        Raises:
            DefinitionError: the function takes arguments, or does not fit the kind.
        """
        if function is None:
            return partial(self._warm, kind=kind)
        return self._warm(function, kind)

    def _warm(self, function: F, kind: str) -> F:
        self.warmers.append(warmer(function, kind))
        return function

    # -- under a stock tracer ---------------------------------------------------------------------

    def step_ended(self, request: Any, state: str, result: Any) -> None:
        """Add the effects of an ended step to its completion; an app without flows has none."""

    def resolve_joins(
        self, args: Sequence[Any], ours: Mapping[str, Any] | None = None
    ) -> tuple[Any, ...]:
        """Return *args* with a fan-in's reference replaced by its results.

        Args:
            args: the task's.
            ours: header `aq`: names the join that the task is the body of, if it is one.

        Raises:
            ChordError: a header task failed.
        """
        ours = ours or {}
        join_id, of_flow = ours.get("join"), "flow" in ours
        found = joins.referenced(args, join_id) if join_id else None
        if not join_id or (found is None and of_flow):
            return tuple(args)
        reply = self.store.command("HGETALL", self.store.keys.outcomes(join_id))
        outcomes = joins.read_outcomes(reply)
        if of_flow:
            value: Any = outcomes
        else:
            value = joins.values(outcomes, self.celery.backend.exception_to_python)
        if found is None:
            return tuple(args)
        place, mark = found
        header = self.celery.backend.restore_group(join_id) if mark.get(joins.NESTED) else None
        if header is not None:
            value = joins.shaped(header, joins.by_task(reply))
        return (*args[:place], value, *args[place + 1 :])


def _configuration(settings: Settings) -> dict[str, Any]:
    """Return Celery's configuration: what agentq's guarantees rest on, each beside its reason."""
    default_queue = "shared" if "shared" in settings.pools else min(settings.pools)
    return {
        "broker_url": PLACEHOLDER,  # where it is, is asked when somebody connects
        "result_backend": "agentq.broker.backend:Backend",
        "task_serializer": serializer.NAME,
        "result_serializer": serializer.NAME,
        "accept_content": ["json", serializer.NAME],  # never pickle
        "task_queues": routing.queues(settings.pools),
        "task_default_queue": default_queue,
        "task_default_exchange": "",
        "task_default_routing_key": default_queue,
        "task_create_missing_queues": False,  # a queue that nobody reads is a typing error
        "task_routes": (routing.route,),
        "task_default_priority": routing.DEFAULT_PRIORITY,  # kombu's 0 is the highest
        "task_inherit_parent_priority": True,  # else it is lost from the second step on
        "task_acks_late": True,  # an early ack loses what a killed worker held
        "task_reject_on_worker_lost": True,
        "worker_send_task_events": settings.worker.events,
        "worker_prefetch_multiplier": settings.worker.prefetch,
        "worker_hijack_root_logger": False,
        "beat_scheduler": "agentq.broker.beat:Scheduler",
        "result_expires": settings.broker.result_ttl,
        "result_chord_expires": settings.runs.join_ttl,
        "broker_connection_retry_on_startup": True,
    }
