"""One round of measured function calls: what they are given, and how long each held the server.

Times are the server's own (`INFO commandstats`), without the way there and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentq.store import calls, effects
from agentq.store.calls import Call
from agentq.store.client import Store
from agentq.store.effects import Effect, Message

CHUNK, FETCHED = 500, 256
BODY = b"x" * 700
HEADERS = b"h" * 700
WORKER, POOL, LANE = "w", "p", "normal"
KEEP_MS, LEASE_MS = 60_000, 3_600_000
NEVER_MS = _CAP = 1 << 40

Times = dict[tuple[str, str], list[int]]
"""Microseconds of each call, by function and what it was given."""


class Timing:
    """A round: its tests one after the other, each on an empty server with one leased worker."""

    def __init__(self, store: Store, *, headers: bytes = HEADERS, body: bytes = BODY) -> None:
        """Keep the store, and what messages carry."""
        self.store = store
        self.prefix = store.keys.prefix
        self._headers, self._body = headers, body
        self._found: Times = {}

    def run(self) -> Times:
        """Measure all of them."""
        for test in self.tests():
            self.store.command("FLUSHALL")
            self.call(calls.renew(self.prefix, WORKER, LEASE_MS, first=True, report=b"{}"))
            test()
        return self._found

    def tests(self) -> Sequence[Callable[[], None]]:
        """Return what is measured."""
        raise NotImplementedError

    def call(self, call: Call) -> Any:
        """Make a call that is not measured."""
        return self.store.call(call)

    def timed(self, given: str, call: Call) -> Any:
        """Make one and note how long it held the server."""
        self.store.command("CONFIG", "RESETSTAT")
        reply = self.call(call)
        spent = self.store.client.info("commandstats")["cmdstat_fcall"]
        self._found.setdefault((str(call[1]), given), []).append(int(spent["usec"]))
        return reply

    # -- what is sent -----------------------------------------------------------------------------

    def message(self, id_: str, *, run: str = "", join: str = "", due: int = 0) -> Message:
        """Return a message of this round's size."""
        return Message(POOL, LANE, due, id_, run, join, self._headers, self._body)

    def admission(self, id_: str = "") -> calls.Admission:
        """Return what everything gets through."""
        return calls.Admission(id_, KEEP_MS, POOL, LANE, _CAP, _CAP)

    def enqueue_all(self, work: Sequence[Effect], run: str = "") -> Call:
        """Return the `enqueue` of *work*, in one run if one is named."""
        new = calls.NewRun(run, b"{}" if run else b"", 0, KEEP_MS, _CAP, _CAP)
        return calls.enqueue(self.prefix, self.admission(), work, run=new)

    def fill(self, count: int, *, at_once: int = CHUNK, due: int = 0) -> None:
        """Enqueue *count* messages."""
        for start in range(0, count, at_once):
            ids = range(start, min(count, start + at_once))
            self.call(self.enqueue_all([effects.put(self.message(f"m{i}", due=due)) for i in ids]))

    def fetch(self, slots: int) -> Call:
        """Return the `fetch` of the one worker."""
        return calls.fetch(self.prefix, WORKER, POOL, slots, 0, (LANE, slots))

    def take(self, count: int) -> list[Any]:
        """Fetch until *count* entries are held; return them."""
        held: list[Any] = []
        while len(held) < count:
            held += self.call(self.fetch(FETCHED))[1]
        return held

    def complete(self, entry: Any, work: Sequence[Effect], run: str = "") -> Call:
        """Return the `complete` of an entry."""
        return calls.complete(self.prefix, entry[1], entry[2], run, KEEP_MS, work)

    def die(self, count: int, body: bytes) -> list[bytes]:
        """Bury *count* letters; return their ids."""
        for number in range(count):
            letter = effects.dead("why", f"d{number}", 0, HEADERS, body, pool=POOL, lane=LANE)
            self.call(calls.complete(self.prefix, "", "", "", KEEP_MS, [letter]))
        found = self.store.command("XRANGE", self.store.keys.dead(), "-", "+")
        return [entry for entry, _ in found]
