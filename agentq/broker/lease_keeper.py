"""The lease of a process that consumes with Celery's own consumer: one per process and cell.

It outlives a lost connection: what the pool's children still run stays under the lease while Celery
connects anew, and is handed out elsewhere only when this process is gone. The thread also returns
what dead processes held and moves what is due, which any process of a cell may do.

A fetch may be answered into a link that was cut: with each renewal the thread looks what Redis has
in this process' hands, and what twice was in nobody's here is handed back.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import random
import socket
import threading
import time
from collections import deque
from typing import Any, Protocol
from uuid import uuid4
from weakref import WeakSet

import orjson

from agentq.broker import worker_app
from agentq.broker.build import identity
from agentq.broker.consumed import Consumed
from agentq.broker.parking import Parking
from agentq.broker.terms import Terms
from agentq.clock import wall_ms
from agentq.errors import BrokerUnavailable, FunctionsMissing
from agentq.host.supervisor import LeaseNote
from agentq.store import announced, calls, skew
from agentq.store.address import Address
from agentq.store.calls import Call
from agentq.store.client import Store

logger = logging.getLogger(__name__)

_ROUND_S = 1.0
_PROMOTED_AT_ONCE = 200


def _new_name() -> str:
    # New at each start: a lease that was lost must not be mistaken for the one that follows it.
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


def pace(lease_ms: int) -> float:
    """Return the mean seconds between two rounds: a short lease is to be renewed in time."""
    return min(_ROUND_S, lease_ms / 3000)


class Holder(Protocol):
    """What a channel holds, as the keeper asks for it: a `QoS`."""

    @property
    def asking(self) -> bool: ...  # noqa: D102 -- see there
    def tags(self) -> set[str]: ...  # noqa: D102


class LeaseKeeper:
    """Holds one lease from `start` to `stop`."""

    def __init__(self, *, store: Store, terms: Terms) -> None:
        """Keep the parts; nothing is taken before `start`."""
        self.name = _new_name()
        self.pools: set[str] = set()
        """The queues this process consumes, for its report."""
        self.parking = Parking()
        self._consumed = Consumed()
        self._store = store
        self._terms = terms
        self._prefix = store.keys.prefix
        self._holders: WeakSet[Holder] = WeakSet()
        self._strays: set[tuple[str, str, str]] = set()
        """Lane, stream and entry of what was in nobody's hands at the last look."""
        self._returns: deque[Call] = deque()
        self._held = False
        self._returning = threading.Lock()
        self._note = LeaseNote(environ={})
        self._renewed = 0.0
        self._went = time.monotonic()
        self._said_missing = False
        self._skew_ms = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take the lease and keep it; safe twice.

        Where the broker lacks the functions it is taken as soon as they are there.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        with self._lock:
            if self._thread is not None:
                return
            self._take()
            self._went = time.monotonic()
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="agentq-lease", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Give up the lease; what is still held under it is handed out again, uncharged."""
        self._stop.set()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(timeout=self._terms.timeout_ms / 1000 + 1)
        call = calls.release(
            self._prefix, self.name, died=False, limit=self._terms.delivery_limit,
            keep_ms=self._terms.keep_ms,
        )  # fmt: skip
        with contextlib.suppress(BrokerUnavailable):  # then it runs out by itself
            while self._store.call(call) >= calls.HANDED_BACK:
                pass
            self._note.remove()
        self._store.close()

    def note_in(self, note: LeaseNote) -> None:
        """Keep in *note* which lease is held: who finds this process dead hands back by it."""
        with self._lock:
            self._note = note
            note.write(self.name)

    @property
    def goes_round(self) -> bool:
        """Whether the thread does its rounds; those that find the broker away count."""
        patience_s = 2 * (self._terms.lease_ms + self._terms.timeout_ms) / 1000
        return self._thread is None or time.monotonic() - self._went < patience_s

    def consumes(self, pool: str, holder: Holder) -> None:
        """Note what a channel of this process consumes, and who knows what it holds."""
        self.pools.add(pool)
        self._holders.add(holder)

    def hand_back(self, call: Call) -> None:
        """Send *call*, which ends a delivery; repeated by the thread while the broker is away."""
        self._returns.append(call)
        with contextlib.suppress(BrokerUnavailable):
            self._send_returns()

    def retake(self) -> None:
        """Take a lease under a new name: the old one was lost, and what it held with it."""
        with self._lock:
            if self._store.command("ZSCORE", self._store.keys.workers(), self.name) is None:
                if self._held:
                    logger.warning("lease %s was lost: what it held runs elsewhere now", self.name)
                    self.name = _new_name()
                self._take()

    def ensure_functions(self) -> bool:
        """Load the functions where they are missing, or say once that somebody else has to.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        try:
            self._store.ensure_functions()
        except FunctionsMissing as error:
            self._say(error)
            return False
        self._said_missing = False
        return True

    def round(self) -> None:
        """Renew when it is time, return what the dead held, move what is due."""
        self._send_returns()
        batch = [
            calls.reap(
                self._prefix, self._terms.delivery_limit, max(self._terms.lease_ms // 2, 3000),
                self._terms.keep_ms,
            ),
            self._promote(),
        ]  # fmt: skip
        due = time.monotonic() - self._renewed >= self._terms.lease_ms / 3000
        asked_ms = wall_ms()
        if due:
            batch[:0] = [self._renewal(first=False), calls.held(self._prefix, self.name)]
        answers = self._store.pipeline(batch)
        failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if failed is not None:
            raise BrokerUnavailable(f"lease {self.name}: {failed}") from failed
        if due:
            self._renewed = time.monotonic()
            self._skew_ms = skew.learn(self._store.address, answers[0][0], asked_ms)
            if not answers[0][1]:
                self.retake()
            else:
                self._look_for_strays(answers[1])
        moved = answers[-1][0]
        while moved >= _PROMOTED_AT_ONCE:
            moved = self._store.call(self._promote())[0]

    def _promote(self) -> Call:
        terms = self._terms
        return calls.promote(
            self._prefix, _PROMOTED_AT_ONCE, terms.keep_ms,
            letters=terms.letters, retries=terms.retries,
        )  # fmt: skip

    def _look_for_strays(self, held: list[list[bytes]]) -> None:
        try:
            holders = list(self._holders)
            known = set().union(*(holder.tags() for holder in holders))
        except RuntimeError:  # the consumer's thread changed them meanwhile: next time
            return
        if any(holder.asking for holder in holders):
            return
        found = {(lane.decode(), stream.decode(), entry.decode()) for lane, stream, entry in held}
        strays = {one for one in found if f"{one[1]}|{one[2]}" not in known}
        for lane, stream, entry in strays & self._strays:
            logger.warning("%s of %s never arrived here: handed back", entry, stream)
            self.hand_back(calls.fail(self._prefix, lane, stream, entry, after_ms=0, retry=False))
        self._strays = strays

    def _run(self) -> None:
        every = pace(self._terms.lease_ms)
        while not self._stop.wait(every * random.uniform(0.8, 1.2)):  # noqa: S311 -- jitter
            try:
                self.round()
                self._said_missing = False
            except FunctionsMissing as error:
                self._say(error)
            except BrokerUnavailable as error:
                logger.debug("%s", error)
            except Exception:
                logger.exception("lease %s", self.name)  # the thread must not end
            self._went = time.monotonic()

    def _say(self, error: FunctionsMissing) -> None:
        """Say once what is missing, until it is there and missing again."""
        if not self._said_missing:
            logger.warning("%s; waiting for them", error)
        self._said_missing = True

    def _send_returns(self) -> None:
        with self._returning:  # the consumer's thread and the keeper's: none is left out
            while self._returns:
                self._store.call(self._returns[0])
                self._returns.popleft()

    def _take(self) -> None:
        self._held = self.ensure_functions()
        if not self._held:
            return
        asked_ms = wall_ms()
        now_ms, _ = self._store.call(self._renewal(first=True))
        self._skew_ms = skew.learn(self._store.address, now_ms, asked_ms)
        self._renewed = time.monotonic()
        self._note.write(self.name)
        if worker_app.hostname():
            announced.announce(self._store, self.name, worker_app.names())

    def _renewal(self, *, first: bool) -> Call:
        report: dict[str, Any] = {
            **identity(),
            "pools": sorted(self.pools),
            "loop": "celery",
            "suspects": worker_app.processes(),  # prefork runs each task alone
            "skew_ms": self._skew_ms,
        }
        if name := worker_app.hostname():
            report |= {"hostname": name, "slots": worker_app.slots()}
            report |= self._consumed.report(*worker_app.consumption(), worker_app.slots())
        return calls.renew(
            self._prefix, self.name, self._terms.lease_ms, first=first, report=orjson.dumps(report)
        )


_keepers: dict[tuple[int, Address], LeaseKeeper] = {}


def keeper_of(address: Address, terms: Terms) -> LeaseKeeper:
    """Return this process' keeper for a cell, started; it ends with the process."""
    key = (os.getpid(), address)  # a forked child has the dictionary but not the thread
    if key not in _keepers:
        store = Store(address=address, timeout=terms.timeout)
        _keepers[key] = LeaseKeeper(store=store, terms=terms)
    _keepers[key].start()
    return _keepers[key]


@atexit.register
def _release_all() -> None:
    for (pid, _), keeper in list(_keepers.items()):
        if pid == os.getpid():
            keeper.stop()
