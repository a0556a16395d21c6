"""What a channel holds unacknowledged: kombu's bookkeeping without its keys in Redis.

A stream's pending list knows who holds what, so nothing is written here; an ack ends the delivery
under its fence. "stale" is no error: the pool's child has ended it already, result and all.

A suspect may be what its process died of. Where tasks share a process (threads, solo) it is taken
alone: only when nothing else is held, and nothing else beside it::

    anything --a suspect comes--> draining --nothing is held--> anything --a suspect--> alone
       ^                                                                                  |
       +---------------------------------- it has ended ----------------------------------+
"""

from __future__ import annotations

import sys
import time
from typing import Any

from kombu.transport import virtual

from agentq.broker import worker_app
from agentq.broker.received import Fence, Received, Verdict
from agentq.errors import BrokerUnavailable
from agentq.store import calls

SUSPECT_MS = 1_000
"""How long a suspect rests that would not be alone here."""


class QoS(virtual.QoS):  # type: ignore[misc]
    """Belongs to one channel."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Hold nothing yet."""
        super().__init__(*args, **options)
        self._for_one = False
        """Whether a suspect is alone here, or nothing more is taken so that one can be."""

    def can_consume(self) -> bool:
        """Whether to read on: an answer that was asked for is always read."""
        closed = worker_app.is_closed() or self._is_for_one()
        return bool(self.channel.asking or (not closed and super().can_consume()))

    def takes(self, verdict: Verdict, *, beside: int) -> bool:
        """Take a message, or hand it back that may not run beside what is held (and *beside*)."""
        if not isinstance(verdict, Received) or worker_app.processes():
            return True  # it does not run, or in a process of its own
        used = self._busy() + beside
        suspect = verdict.payload["letter"].suspected > 0
        if used and (suspect or self._for_one):
            self._for_one = True
            self.give_back(verdict.fence, after_ms=SUSPECT_MS if suspect else 0)
            return False
        self._for_one = suspect
        return True

    def give_back(self, fence: Fence, *, after_ms: int = 0) -> None:
        """Hand out again what was not begun."""
        self.channel.keeper.hand_back(self._given_back(fence, after_ms=after_ms))

    def _is_for_one(self) -> bool:
        self._for_one = self._for_one and self._busy() > 0
        return self._for_one

    def _busy(self) -> int:
        """Return how many are held here, or run since before a lost link."""
        return max(self._used(), len(_running_tags()))

    def _used(self) -> int:
        return len(self._delivered) - len(self._dirty)

    def room(self, default: int) -> int:
        """Return how many more messages may be held; *default* where nothing limits them."""
        room = self.can_consume_max_estimate()
        return default if room is None else int(room)

    @property
    def load(self) -> int:
        """Return by what idle workers are ordered: the least is woken first."""
        return self.channel.keeper.parking.load(self._used())  # type: ignore[no-any-return]

    @property
    def asking(self) -> bool:
        """Whether a fetch is under way: what it is answered is not held yet."""
        return bool(self.channel.asking and not self.channel.closed)

    def tags(self) -> set[str]:
        """Return the deliveries that are held, or run by the pool."""
        return {*self._delivered, *_running_tags()}

    def ack(self, delivery_tag: str) -> None:
        """End the delivery; nothing is left to do where the pool's child has ended it.

        Celery only logs an ack that fails, and would never ask for work in its place again; so one
        that the broker did not answer is left to the keeper, who repeats it.
        """
        if fence := Fence.of(delivery_tag):
            try:
                self.channel.end(fence)
            except BrokerUnavailable:
                keep, prefix = self.channel.terms.keep_ms, self.channel.prefix
                end = calls.complete(prefix, fence.stream, fence.entry, "", keep, ())
                self.channel.keeper.hand_back(end)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 -- kombu's
        """Hand the message out again, or keep it as a dead letter."""
        if fence := Fence.of(delivery_tag):
            message = self._delivered.get(delivery_tag)
            if requeue:
                died = getattr(message, "died", False)
                call = self._died(fence) if died else self._given_back(fence)
                self.channel.keeper.hand_back(call)
            elif message is not None:
                self.channel.bury(fence, message.refused or "rejected", message.letter)
            else:
                self.channel.end(fence)
        super().ack(delivery_tag)

    def restore_unacked(self) -> None:
        """Hand back what nobody works on; what the pool still runs stays under the lease."""
        self._flush()
        _agree_with_pool()
        running = _running_tags()
        for tag in list(self._delivered):
            fence = Fence.of(tag)
            if fence and tag not in running:
                self.give_back(fence)
        self._delivered.clear()

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Do nothing: `reap` returns what the dead held."""

    def _died(self, fence: Fence) -> calls.Call:
        terms = self.channel.terms
        return calls.died(
            self.channel.prefix, f"{fence.pool}:{fence.lane}", fence.stream, fence.entry,
            limit=terms.delivery_limit, keep_ms=terms.keep_ms,
        )  # fmt: skip

    def _given_back(self, fence: Fence, *, after_ms: int = 0) -> calls.Call:
        prefix, lane = self.channel.prefix, f"{fence.pool}:{fence.lane}"
        return calls.fail(prefix, lane, fence.stream, fence.entry, after_ms=after_ms, retry=False)


def _agree_with_pool() -> None:
    """Leave to Celery's pool what it has begun, and take back what it has not.

    Celery goes by what its children have said, and drops the rest when a link is lost: what lies
    in a child's pipe, or has just begun, would run all the same, beside its second delivery.
    """
    state = sys.modules.get("celery.worker.state")
    requests = tuple(state.reserved_requests) if state is not None else ()
    for request in requests:
        job = request._apply_result and request._apply_result()  # noqa: SLF001 -- in private_names
        if (future := getattr(job, "f", None)) is not None:  # threads: what waits for one
            future.cancel()
        elif (child := getattr(job, "_write_to", None)) is not None and not job.accepted():
            job._ack(None, time.monotonic(), child.pid, None)  # noqa: SLF001 -- as it will say
            job._accept_callback = None  # noqa: SLF001 -- once is enough


def _running_tags() -> set[str]:
    """Return the deliveries that Celery's pool runs; none when it is told to drop them."""
    state = sys.modules.get("celery.worker.state")
    if state is None or state.should_terminate not in (None, False):
        return set()
    return {request.message.delivery_tag for request in tuple(state.active_requests)}
