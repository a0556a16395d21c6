"""The stream of work of a soak: pieces of every kind at a steady rate, each as its user would send it.

    fan        a run: plan, members, review; every second one with a deadline that it keeps
    again      a run whose step fails and is tried again
    cancelled  a run of slow members, cancelled a second after it was accepted
    late       a run of slow members that its deadline ends
    task       a plain Celery task
    delayed    one with a countdown
    flaky      one that retries
    chord      header and body

A submit that the broker did not answer is sent again under the same key or ids until it is.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

from celery import chord

from agentq.errors import BrokerUnavailable, QueueFull
from tests.fault.scenarios.ground import now

T = TypeVar("T")

Kind = Literal["fan", "again", "cancelled", "late", "task", "delayed", "flaky", "chord"]

DECK: tuple[Kind, ...] = (
    *("fan",) * 7, "again", "again", "cancelled", "late",
    *("task",) * 3, "delayed", "delayed", "flaky", "flaky", "chord", "chord",
)  # fmt: skip
"""Dealt shuffled, again and again: each deal offers the same work."""

MEMBER_S = 0.3
SLOW_S = 4.0
SLOW_WIDTH = 2
CANCEL_AFTER_S = 1.0
DEADLINE_S = 1.5
COUNTDOWN_S = 3.0
FAILURES = 2

_PRODUCERS = 4
_PAUSE = timedelta(milliseconds=100)
_ANSWERED_S = 60.0


@dataclass(slots=True)
class Piece:
    """One piece of work; instants are those of the ledger's lines.

    label: begins the label of each of its lines.
    asked, accepted, cancelled: when its submit was first called, when one returned, and when a
        cancel did; 0 not yet.
    run: the id of its run, if it is one.
    state, value: how it ended and with what, as its user reads it; "" not yet.
    ends: how many ends its run's events tell of.
    """

    kind: Kind
    label: str
    width: int
    asked: float = 0.0
    accepted: float = 0.0
    cancelled: float = 0.0
    run: str = ""
    state: str = ""
    value: Any = None
    ends: int = 1

    @property
    def task(self) -> str:
        """The id of the Celery task whose result is the piece's."""
        return f"{self.label}.body" if self.kind == "chord" else self.label


class Offer:
    """Offers work from `start` to `stop`."""

    def __init__(self, *, app: Any, rate: float, seed: int) -> None:
        self.pieces: list[Piece] = []
        self.refused = 0
        """Submits and cancels that were not answered, and sent again."""
        self.errors: list[BaseException] = []
        """What a producer was told that it should not have been."""
        self._app = app
        self._gap_s = 1 / rate
        self._chance = random.Random(seed)  # noqa: S311 -- a seed repeats a failure
        self._deal: list[Kind] = []
        self._next = 0.0
        self._later: list[tuple[float, str, Callable[[], None]]] = []
        """What is to be done at a time: a heap."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"producer {number}")
            for number in range(_PRODUCERS)
        ]

    def start(self, *, rush: float = 0.0) -> None:
        """Begin, with the work of *rush* seconds at once."""
        self._next = now() - rush
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Offer no more; return when all that was begun is accepted. Safe twice."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while job := self._take():
            at, act = job
            if (wait := at - now()) > 0:
                time.sleep(wait)
            try:
                act()
            except Exception as error:  # noqa: BLE001 -- told at the end
                self.errors.append(error)

    def _take(self) -> tuple[float, Callable[[], None]] | None:
        """Return what is to be done next, and when; None: nothing more."""
        with self._lock:
            if self._stopped.is_set() or (self._later and self._later[0][0] < self._next):
                return self._first_of_later()
            at, self._next = self._next, self._next + self._gap_s
            piece = self._new()
            self.pieces.append(piece)
            return at, lambda: self._submit(piece)

    def _first_of_later(self) -> tuple[float, Callable[[], None]] | None:
        if not self._later:
            return None
        at, _, act = heapq.heappop(self._later)
        return at, act

    def _new(self) -> Piece:
        if not self._deal:
            self._deal = self._chance.sample(DECK, len(DECK))
        number = len(self.pieces)
        return Piece(self._deal.pop(), f"p{number}", 3 + number % 5)

    # -- as a user would --------------------------------------------------------------------------

    def _submit(self, piece: Piece) -> None:
        piece.asked = now()
        piece.run = self._until_answered(lambda: self._send(piece))
        piece.accepted = now()
        if piece.kind == "cancelled":
            with self._lock:
                job = (now() + CANCEL_AFTER_S, piece.label, lambda: self._cancel(piece))
                heapq.heappush(self._later, job)

    def _send(self, piece: Piece) -> str:
        """Send it; return the id of its run, "" where it is none."""
        label, fan = piece.label, self._app.fan
        match piece.kind:
            case "fan":
                deadline = "10m" if piece.width % 2 else None
                return _run(fan, [label, piece.width, MEMBER_S], label, deadline)
            case "again":
                return _run(self._app.again, [label, FAILURES], label)
            case "cancelled":
                return _run(fan, [label, SLOW_WIDTH, SLOW_S], label)
            case "late":
                return _run(fan, [label, SLOW_WIDTH, SLOW_S], label, f"{DEADLINE_S:g}s")
            case "task" | "delayed" | "flaky" | "chord":
                self._send_tasks(piece)
                return ""

    def _send_tasks(self, piece: Piece) -> None:
        app, label = self._app, piece.label
        match piece.kind:
            case "task":
                app.work.apply_async((label, MEMBER_S), task_id=label)
            case "delayed":
                app.work.apply_async((label, MEMBER_S), task_id=label, countdown=COUNTDOWN_S)
            case "flaky":
                app.flaky.apply_async((label, FAILURES), task_id=label)
            case "chord":
                header = [
                    app.work.s(one, MEMBER_S).set(task_id=one)
                    for one in (f"{label}.{number}" for number in range(piece.width))
                ]
                chord(header)(app.total.s(piece.task).set(task_id=piece.task))

    def _cancel(self, piece: Piece) -> None:
        self._until_answered(self._app.aq.run(piece.run).cancel)
        piece.cancelled = now()

    def _until_answered(self, ask: Callable[[], T]) -> T:
        """Return the answer of *ask*; what keeps it from being given for long is raised."""
        until = now() + _ANSWERED_S
        while True:
            try:
                return ask()
            except (BrokerUnavailable, QueueFull) as error:
                if now() > until:
                    raise
                retry_after = getattr(error, "retry_after", _PAUSE)
            with self._lock:
                self.refused += 1
            time.sleep(retry_after.total_seconds())


def _run(flow: Any, argument: list[Any], key: str, deadline: str | None = None) -> str:
    """Submit a run under a key; return its id."""
    return str(flow.submit(argument, key=key, deadline=deadline).id)
