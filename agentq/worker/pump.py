"""The traffic between a worker and its cell: completions out, work in, in as few trips as possible.

One pipeline is under way at a time. What completes meanwhile leaves together with the next one, and
a fetch rides along when there is room: under load a step costs a fraction of a round trip, and an
idle worker's next step two short ones (wake, fetch).

    hungry: pools to ask for work: all at a wake-up and every `poll`, one again when a fetch from it
            came back full. A fetch that leaves room tells the cell that this worker has some.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from agentq.errors import BrokerUnavailable
from agentq.store import calls

if TYPE_CHECKING:
    from agentq.broker.policy import Selection
    from agentq.store.calls import Call
    from agentq.store.client import AsyncStore
    from agentq.timing.deadline import BrokerClock
    from agentq.worker.hands import Hands

logger = logging.getLogger(__name__)

FETCH_MOST = SEND_MOST = 64
"""Messages that a fetch takes, and completions in one pipeline, at most.

Others wait while the server works off what came in one go: with 256 and 512 an urgent step beside a
flood began 3 times as late (p99) as with nothing else, and no step of the flood cost less.
"""

_LONGEST_PAUSE = 2.0

_SAID_EVERY_S = 10.0
"""Between two lines about retries that are held."""

GROUP_MOST, GROUP_ARGUMENTS, GROUP_BYTES = 16, 2000, 1 << 20
"""Completions, their arguments and bytes that one call carries; it can not be interrupted."""


class Outgoing(NamedTuple):
    """What ends one delivery: the last call is the ending, those before it stage members."""

    calls: Sequence[Call]
    task_id: str


class Pump:
    """One per worker process."""

    def __init__(  # noqa: PLR0913 -- its parts
        self,
        *,
        store: AsyncStore,
        worker: str,
        pools: Sequence[str],
        selection: Selection,
        hands: Hands,
        on_lost: Callable[[str], None],
        clock: BrokerClock,
        poll: timedelta,
        on_error: Callable[[Exception], None] = lambda _: None,
        lease: timedelta,
    ) -> None:
        """Keep the parts.

        *on_lost* is called with the name whose fetch finds no lease, *on_error* with what keeps the
        broker out of reach.
        """
        self._store = store
        store.on_connect = self._reconnected
        self.worker = worker
        """The name that fetches; replaced with the lease."""
        self._pools = pools
        self._selection = selection
        self._hands = hands
        self._on_lost = on_lost
        self._on_error = on_error
        self._clock = clock
        self._poll = poll.total_seconds()
        self._lease = lease.total_seconds()
        self._outgoing: deque[Outgoing] = deque()
        self._hungry = set(pools)
        self._fetching = self._offered = True
        self._suspended = False
        self._turns: Counter[str] = Counter()
        self._signal = asyncio.Event()
        self._sent = asyncio.Event()
        self._pause = 0.0
        self._unsure = False
        self._said_held = -_SAID_EVERY_S

    def complete(self, ending: Sequence[Call], task_id: str) -> None:
        """Send *ending* with the next trip."""
        self._outgoing.append(Outgoing(ending, task_id))
        self._signal.set()

    def wake(self) -> None:
        """There may be work."""
        self._hungry.update(self._pools)
        self._signal.set()

    def stop_fetching(self) -> None:
        """Ask for no more work; completions still go out."""
        self._fetching = False
        self._signal.set()

    def suspend(self) -> None:
        """Ask for no more work until `resume`."""
        self._suspended = True
        self._signal.set()

    def resume(self) -> None:
        """Ask for work again."""
        self._suspended = False
        self.wake()

    @property
    def idle(self) -> bool:
        """Whether everything that was completed has been sent and answered."""
        return not self._outgoing

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            self._signal.clear()
            outgoing, asked = self._trip()
            if outgoing or asked:
                await self._exchange(outgoing, asked)
                continue
            if self._offered and not self._takes:
                await self._withdraw()
            try:
                # Spread, so that a fleet does not poll in step.
                limit = self._poll * (0.75 + 0.5 * random.random())  # noqa: S311
                async with asyncio.timeout(limit):
                    await self._signal.wait()
            except TimeoutError:
                self.wake()

    @property
    def _takes(self) -> bool:
        return self._fetching and not self._suspended

    async def _withdraw(self) -> None:
        """Have no room any more: a wake-up would come here for work that nobody here takes."""
        self._offered = False
        keys = self._store.keys
        with contextlib.suppress(BrokerUnavailable):
            await self._store.pipeline([("ZREM", keys.idle(p), self.worker) for p in self._pools])

    def _trip(self) -> tuple[list[Outgoing], list[tuple[str, int]]]:
        """Choose what goes with the next trip: completions, and fetches as (pool, slots)."""
        outgoing = [self._outgoing.popleft() for _ in range(min(SEND_MOST, len(self._outgoing)))]
        return outgoing, self._asked() if self._hungry and self._takes else []

    def _asked(self) -> list[tuple[str, int]]:
        """Share the room among the pools that may have work; those it does not reach stay hungry.

        Taken off the list before the trip: a wake-up that comes while it is under way must not be
        forgotten.
        """
        room = self._hands.room()
        asked: list[tuple[str, int]] = []
        for left in range(len(self._hungry), 0, -1):
            if room <= 0:
                break
            share = min(-(-room // left), FETCH_MOST)
            asked.append((self._hungry.pop(), share))
            room -= share
        self._offered = self._offered or bool(asked)
        return asked

    async def _exchange(self, outgoing: list[Outgoing], asked: list[tuple[str, int]]) -> None:
        if self._unsure and not await self._compare(outgoing):
            return
        grouped = group(outgoing)
        trip = [call for call, _ in grouped]
        worker = self.worker
        for pool, slots in asked:
            self._turns[pool] += 1
            quotas = self._selection.quotas(slots, self._turns[pool])
            prefix = self._store.keys.prefix
            trip.append(calls.fetch(prefix, worker, pool, slots, self._hands.load, quotas))
        began = time.monotonic()
        try:
            replies = await self._store.pipeline(trip)
        except BrokerUnavailable as error:
            await self._hold(outgoing, error)
            return
        self._pause = 0.0
        if time.monotonic() - began < self._lease:
            fetched = replies[len(replies) - len(asked) :]
            for (pool, slots), reply in zip(asked, fetched, strict=True):
                self._take(worker, pool, slots, reply)
        else:  # stopped meanwhile: others may have by now what came, so it counts as never arrived
            self._hungry.update(self._pools)
            self._unsure = True
        for (_, task_ids), reply in zip(grouped, replies, strict=False):
            self._check(task_ids, reply)

    async def _hold(self, outgoing: list[Outgoing], error: BrokerUnavailable) -> None:
        """Keep what was not answered: the fence makes sending it again safe."""
        self._outgoing.extendleft(reversed(outgoing))
        self._on_error(error)
        if not self._pause:
            logger.warning("%s; holding %d completions", error, len(self._outgoing))
        self._hungry.update(self._pools)
        self._unsure = True
        self._pause = min(max(self._pause * 2, 0.05), _LONGEST_PAUSE)
        await asyncio.sleep(self._pause * (0.5 + random.random()))  # noqa: S311

    def _reconnected(self) -> None:
        """Compare with the next trip: the new link may lead to a server that knows less."""
        self._unsure = True
        self._signal.set()

    async def _compare(self, outgoing: list[Outgoing]) -> bool:
        """On a new link: hand back what the broker thinks this worker has and it has not.

        Returns whether the broker answered.
        """
        prefix = self._store.keys.prefix
        try:
            (held,) = await self._store.pipeline([calls.held(prefix, self.worker)])
            self._unsure = False
            # Looked at behind the trip: a step that ended during it is on its way out.
            ending = {call for going in (*outgoing, *self._outgoing) for call in going.calls}
            fenced = {(call[4], call[5]) for call in ending if call[1] == calls.COMPLETE}
            fenced |= {(call[5], call[6]) for call in ending if call[1] in calls.HANDS_BACK}
            strays = [
                calls.fail(prefix, lane, stream, entry, after_ms=0, retry=False)
                for lane, stream, entry in ([] if isinstance(held, Exception) else held)
                if not self._hands.holds(stream, entry) and (stream, entry) not in fenced
            ]
            if strays:
                await self._store.pipeline(strays)
        except BrokerUnavailable as error:
            await self._hold(outgoing, error)
            return False
        if self._pause or strays:
            logger.warning("the broker answers again; %d messages handed back", len(strays))
        return True

    def rejoin(self, worker: str) -> None:
        """Go on under a new name: what was to be completed under the old one would be refused."""
        self.worker = worker
        self._outgoing.clear()
        self.wake()

    def _take(self, worker: str, pool: str, slots: int, reply: Any) -> None:
        if isinstance(reply, Exception):
            logger.error("fetch refused: %s", reply)
            return
        now_ms, entries = reply
        self._clock.learn(now_ms, time.monotonic())
        if entries is None:
            self._on_lost(worker)
            return
        if worker != self.worker:
            return  # fetched under a lease that is lost: handed out again with what it held
        if len(entries) >= slots:
            self._hungry.add(pool)
        for entry in entries:
            self._hands.take(pool, entry)

    def _check(self, task_ids: list[str], reply: Any) -> None:
        answers = reply if isinstance(reply, list) else [reply] * len(task_ids)
        for task_id, answer in zip(task_ids, answers, strict=False):
            if answer == b"stale":
                logger.warning(
                    "%s: its result is refused: written before, or another has it now", task_id
                )
            elif isinstance(answer, int):
                self._say_held(task_ids, answer)
            elif answer == b"late":
                logger.info("%s: ended behind its run's deadline; refused", task_id)
            elif isinstance(answer, Exception):
                # Not sent again: the server answered, and would answer the same.
                logger.error("%s: completion refused: %s", task_id, answer)

    def _say_held(self, task_ids: list[str], held_ms: int) -> None:
        """Say that retries wait for the budget of their pool: now and then, there are many."""
        if time.monotonic() - self._said_held > _SAID_EVERY_S:
            self._said_held = time.monotonic()
            logger.warning(
                "%s: its retry waits about %.1f s longer, as those of its pool are at their budget "
                "(retry.budget)",
                task_ids[0], held_ms / 1000,
            )  # fmt: skip


def group(outgoing: Sequence[Outgoing]) -> list[tuple[Call, list[str]]]:
    """Put completions that need nothing sent before them into few calls, each with its task ids."""
    result: list[tuple[Call, list[str]]] = []
    held: list[Call] = []
    ids: list[str] = []
    size = large = 0

    def flush() -> None:
        nonlocal held, ids, size, large
        if held:
            call = held[0] if len(held) == 1 else calls.complete_many(held)
            result.append((call, ids))
        held, ids, size, large = [], [], 0, 0

    for ending, task_id in outgoing:
        *before, last = ending
        if before or last[1] != calls.COMPLETE:
            flush()
            result += [(call, []) for call in before]
        if last[1] != calls.COMPLETE:
            result.append((last, [task_id]))
            continue
        weight = sum([len(arg) for arg in last if type(arg) is bytes])
        fits = size + len(last) <= GROUP_ARGUMENTS and large + weight <= GROUP_BYTES
        if len(held) == GROUP_MOST or not fits:
            flush()
        held.append(last)
        ids.append(task_id)
        size += len(last)
        large += weight
    flush()
    return result
