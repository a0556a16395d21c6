"""What a worker has in its hands: deliveries that run, from their entry to their ending."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from celery.worker import state as worker_state

from agentq.broker.parking import Parking
from agentq.clock import milliseconds
from agentq.errors import BlobsUnavailable, BrokerUnavailable
from agentq.store import calls
from agentq.worker.delivery import Delivery, Settled, Unknown, judge
from agentq.worker.suspects import DiedAlone, NotBegun
from agentq.worker.tracer import Tracer, is_async

if TYPE_CHECKING:
    from agentq.store.calls import Call
    from agentq.worker.parts import Parts
    from agentq.worker.suspects import Suspects

logger = logging.getLogger(__name__)

CANCELLED_KEPT = 1000
"""Ids of cancelled runs that are remembered for a while: the word may overtake a step of it."""

AGAIN_MS = 1000
"""How long one waits whose step could not be begun because the broker did not answer."""


_STORAGE = "the blob storage of its payload (settings blobs.*)"
"""What is lacking, as `agentq status` shows it, where a payload can not be read here."""


class Hands:
    """One per worker process; *complete* sends the calls that end a delivery."""

    def __init__(
        self,
        *,
        parts: Parts,
        slots: int,
        suspects: Suspects,
        complete: Callable[[Sequence[Call], str], None],
    ) -> None:
        """Keep the parts."""
        self._parts = parts
        self._suspects = suspects
        self.slots = slots
        """How many run at once; 0: none is taken."""
        self._complete = complete
        self._tracer = Tracer(parts)
        self._running: dict[bytes, tuple[asyncio.Task[None], Delivery]] = {}
        self._alone: set[bytes] = set()
        """Which of them are suspects, who take no slot."""
        self._runs: defaultdict[str, set[bytes]] = defaultdict(set)
        self._prefix = parts.cell.store.keys.prefix
        self._keep_ms = milliseconds(parts.app.settings.runs.keep)
        self._limit = parts.app.settings.broker.delivery_limit
        self.has_threads = any(map(_needs_thread, parts.app.celery.tasks.values()))
        self._parking = Parking()
        self._terminated: set[bytes] = set()
        self._cancelled_runs: OrderedDict[str, float] = OrderedDict()
        """Until when what a fetch brings of each is of the run that was cancelled, monotonic."""
        # The pump takes no answer older than a lease. After `keep` a run of the same id may begin.
        settings = parts.app.settings
        self._cancelled_for = min(settings.worker.lease, settings.runs.keep / 2).total_seconds()
        self._leaving = False

    def __len__(self) -> int:
        """Return how many run."""
        return len(self._running)

    @property
    def active(self) -> list[Delivery]:
        """Return what runs."""
        return [delivery for _, delivery in self._running.values()]

    def room(self) -> int:
        """Return how many more may be taken."""
        room = self.slots - len(self._running) + len(self._alone)
        if self.has_threads:
            # Few are held that can not start: another worker may have a thread for them.
            threads = self._parts.threads
            room = min(room, 2 * threads.count - threads.used)
        return room

    @property
    def moment(self) -> float:
        """Return how many seconds other workers are to have for themselves after a wake-up."""
        return self._parking.moment

    @property
    def load(self) -> int:
        """Return how busy this worker is beside others: the least busy is woken first."""
        return self._parking.load(len(self._running))

    def holds(self, stream: bytes, entry: bytes) -> bool:
        """Whether the entry is in these hands."""
        return stream + b"|" + entry in self._running

    def take(self, pool: str, entry: list[Any]) -> None:
        """Take a fetched entry: run it, or end it at once."""
        app = self._parts.app
        verdict = judge(
            entry,
            pool=pool,
            tasks=app.celery.tasks,
            flows=app.flows,
            keep_ms=self._keep_ms,
            max_payload=app.settings.broker.max_payload,
        )
        match verdict:
            case Delivery():
                self._take_delivery(verdict, entry)
            case Settled(stream, entry_id, run, effects, why):
                logger.info("ended unstarted: %s", why)
                # Its run, which is over, would refuse effects.
                of = "" if effects else run
                end = calls.complete(self._prefix, stream, entry_id, of, self._keep_ms, effects)
                self._complete([end], run or "message")
            case Unknown():
                self._parking.say(verdict.lacking)
                self._complete([self._parked(verdict)], verdict.lacking)

    def _take_delivery(self, delivery: Delivery, entry: list[Any]) -> None:
        if self._was_cancelled(delivery.run):
            self._complete(self._cancelled(delivery), delivery.id)
        elif not self._is_suspect(delivery):
            self._begin(delivery)
        elif len(self._alone) < self._suspects.most:
            self._begin(delivery, entry)
        else:  # another worker may have a place for it
            self._complete([self._again(delivery)], delivery.id)

    def _was_cancelled(self, run: str) -> bool:
        """Whether the fetch may be older than the word that its run is cancelled."""
        return self._cancelled_runs.get(run, 0.0) > time.monotonic()

    def _is_suspect(self, delivery: Delivery) -> bool:
        # At the limit it is not run any more, only ended.
        runs = delivery.attempts < self._limit
        return runs and delivery.suspected > 0 and self._suspects.at_once > 0

    def cancel_run(self, run: str) -> None:
        """Cancel what runs of a cancelled run, and what a fetch under way still brings of it."""
        self._cancelled_runs[run] = time.monotonic() + self._cancelled_for
        self._cancelled_runs.move_to_end(run)
        while len(self._cancelled_runs) > CANCELLED_KEPT:
            self._cancelled_runs.popitem(last=False)
        for key in list(self._runs.get(run, ())):
            self._cancel(key)

    def cancel_task(self, task_id: str) -> None:
        """Cancel a running task by its id."""
        for delivery in self.active:
            if delivery.id == task_id:
                self._terminated.add(delivery.key)
                self._cancel(delivery.key)

    def cancel_all(self) -> None:
        """Cancel what runs, under a lease that is lost: its endings would be refused."""
        for key in list(self._running):
            self._cancel(key)

    def _cancel(self, key: bytes) -> None:
        task, delivery = self._running[key]
        task.cancel()
        # One that is cancelled before its first line runs none, not even its `finally`.
        task.add_done_callback(lambda _: self._end_unbegun(delivery))

    def _end_unbegun(self, delivery: Delivery) -> None:
        if delivery.key in self._running:
            ending = self._cancelled(delivery)
            self._forget(delivery)
            self._complete(ending, delivery.id)

    async def leave(self, *, within: float) -> None:
        """Let go of what still runs: nothing ends, so that the lease's release hands it back."""
        self._leaving = True
        tasks = [task for task, _ in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            logger.warning("steps handed back, as they did not end in time: %d", len(tasks))
            await asyncio.wait(tasks, timeout=within)

    def _begin(self, delivery: Delivery, alone: list[Any] | None = None) -> None:
        """Begin it on this loop, or *alone*: then it is the entry, which goes to the child."""
        self._parts.events.received(delivery)
        work = self._work(delivery, alone)
        task = asyncio.get_running_loop().create_task(work, name=delivery.id)
        if alone is not None:
            self._alone.add(delivery.key)
        self._running[delivery.key] = (task, delivery)
        if delivery.run:
            self._runs[delivery.run].add(delivery.key)

    async def _work(self, delivery: Delivery, alone: list[Any] | None) -> None:
        try:
            ending = await self._ended(delivery, alone)
        except asyncio.CancelledError:
            if self._leaving:
                return
            ending = self._cancelled(delivery)
        except BrokerUnavailable as error:
            logger.warning("%s[%s]: %s; handed back", delivery.task.name, delivery.id, error)
            ending = [self._again(delivery)]
        except BlobsUnavailable as error:
            ending = [self._parked(self._unreachable(delivery, error))]
        except NotBegun as error:
            logger.error("%s[%s]: %s; handed back", delivery.task.name, delivery.id, error)  # noqa: TRY400 -- ours, no trace
            ending = [self._again(delivery)]
        except DiedAlone as error:
            logger.error(  # noqa: TRY400 -- as above
                "%s[%s]: alone in a process, %s: charged, %d of %d", delivery.task.name,
                delivery.id, error, delivery.attempts + 1, self._limit,
            )  # fmt: skip
            ending = [self._charged(delivery)]
        except BaseException:
            logger.exception("%s[%s]: internal error", delivery.task.name, delivery.id)
            ending = [self._charged(delivery)]
        finally:
            self._forget(delivery)
        worker_state.all_total_count[0] += 1
        worker_state.total_count[delivery.task.name] += 1
        self._complete(ending, delivery.id)

    async def _ended(self, delivery: Delivery, alone: list[Any] | None) -> list[Call]:
        if alone is None:
            return await self._tracer.run(delivery)
        return await self._suspects.run(delivery, alone, events=self._parts.events)

    def _forget(self, delivery: Delivery) -> None:
        self._running.pop(delivery.key, None)
        self._alone.discard(delivery.key)
        self._terminated.discard(delivery.key)
        if delivery.run:
            keys = self._runs[delivery.run]
            keys.discard(delivery.key)
            if not keys:
                del self._runs[delivery.run]

    def _cancelled(self, delivery: Delivery) -> list[Call]:
        """Return the end of a step that was cancelled: no effects where its run is over."""
        if delivery.key in self._terminated:
            return self._tracer.terminated(delivery)
        return [
            calls.complete(
                self._prefix, delivery.stream, delivery.entry, delivery.run, self._keep_ms, []
            )
        ]

    def _charged(self, delivery: Delivery) -> Call:
        """Return what hands out again what we could not run: a few times, not for ever."""
        lane = f"{delivery.pool}:{delivery.lane}"
        limit = self._limit
        return calls.died(
            self._prefix, lane, delivery.stream, delivery.entry, limit=limit, keep_ms=self._keep_ms
        )

    def _parked(self, unknown: Unknown) -> Call:
        return calls.park(
            self._prefix, unknown.lane, unknown.stream, unknown.entry,
            after_ms=self._parking.after_ms(unknown.id), name=unknown.lacking,
            limit_ms=milliseconds(self._parts.app.settings.broker.park_limit),
            keep_ms=self._keep_ms,
        )  # fmt: skip

    def _unreachable(self, delivery: Delivery, error: BlobsUnavailable) -> Unknown:
        if self._parking.is_news(_STORAGE):
            logger.error("%s[%s]: %s; parked", delivery.task.name, delivery.id, error)
        lane = f"{delivery.pool}:{delivery.lane}"
        return Unknown(lane, delivery.stream, delivery.entry, delivery.id.encode(), _STORAGE)

    def _again(self, delivery: Delivery) -> Call:
        lane = f"{delivery.pool}:{delivery.lane}"
        return calls.fail(
            self._prefix, lane, delivery.stream, delivery.entry, after_ms=AGAIN_MS, retry=False
        )


def _needs_thread(task: Any) -> bool:
    if task.name.startswith("celery."):
        return False
    return not is_async(task) or (task.step is not None and task.step.kind == "thread")
