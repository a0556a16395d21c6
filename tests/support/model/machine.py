"""What all rules share: the cell, the paper beside it, and what must hold after each step."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from agentq.ops.dead import drop
from agentq.ops.pausing import Kind, resume
from agentq.store import effects
from agentq.store.effects import Effect
from tests.support.cell import Cell
from tests.support.model.census import Census, ids
from tests.support.model.paper import Held, Note, Paper, Place
from tests.support.redis_server import Server

WORKERS = ("w0", "w1", "w2")
ISOLATING = {"w0", "w1"}
"""What they run alone is in a process of its own; what another one held alone is charged with it."""
LANES = ("high", "normal", "low")
LEDGER = "ledger"
"""A stream to which each completion adds its id."""

BUDGET = "0 1"
"""Retries a second; more only as a rule gives tokens."""

OUTCOME = b"null"
HELD = 4
"""In workers' hands: what ends one delivery fetches more where there are fewer."""

lanes = st.sampled_from(LANES)


class Machine(RuleBasedStateMachine):
    """A cell of its own for each example."""

    url: str
    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell(f"{self.url}?cell={uuid4().hex[:12]}")
        self.paper = Paper()
        self.delays = self.sweeps = 0
        self.cell.reap()
        for worker in WORKERS:
            self.renew(worker)
        self.now = Census(self.cell)

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        self.now = Census(self.cell)
        self._each_id_is_in_exactly_one_place()
        self._what_is_put_aside_is_paused()
        self._each_id_is_done_once()
        self._the_counters_are_what_there_is()

    def _each_id_is_in_exactly_one_place(self) -> None:
        now, paper = self.now, self.paper
        assert sorted(now.waiting) == sorted(paper.at(Place.WAITS))
        behind = [id_ for some in now.behind.values() for id_ in ids(some)]
        assert sorted(behind) == sorted(paper.at(Place.BEHIND))
        assert sorted(one.id for one in now.letters) == sorted(paper.at(Place.DEAD))
        held = {(one.handed.stream, one.handed.entry): one.worker for one in paper.held}
        assert now.pending == held
        assert now.staged.keys() == paper.staged
        assert now.without_due == now.without_message == []
        of_runs = [one for one in now.delayed if one.run]
        assert now.of_runs == sorted((one.run, one.member) for one in of_runs)
        assert {one.run for one in of_runs if not paper.is_on(one.run)} <= now.ended

    def _what_is_put_aside_is_paused(self) -> None:
        assert self.now.paused.keys() == self.paper.pauses.keys()
        for name, aside in self.now.aside.items():
            for one in aside:
                assert name in self.paper.stopping(self.paper.notes[one.id])

    def _each_id_is_done_once(self) -> None:
        events = self.cell.redis("XRANGE", self.cell.keys.events(LEDGER), "-", "+")
        done = [fields[b"d"].decode() for _, fields in events]
        assert len(set(done)) == len(done)
        assert set(done) <= set(self.paper.at(Place.DONE))

    def _the_counters_are_what_there_is(self) -> None:
        assert self.now.tenants == self.paper.tenants()
        on = {name for name, run in self.paper.runs.items() if run.on}
        assert self.now.due == on
        for name, run in self.paper.runs.items():
            record = self.now.runs[name]
            assert (record["state"] == "running") == run.on
            used = (int(record.get("bytes", 0)), int(record.get("members", 0)))
            assert used == (run.bytes, run.members)
        parked = [one.lacking for one in self.now.delayed if one.lacking]
        assert self.now.parked == {name: parked.count(name) for name in parked}
        assert self.now.load.get("n", 0) == self.paper.drained
        for lane in LANES:
            for kind, new in (("d", True), ("a", False)):
                beside = self.now.beside(lane, new=new)
                assert self.now.load.get(f"{kind}:{lane}", 0) == len(beside)
                assert self.now.load.get(f"{kind}b:{lane}", 0) == sum(one.bytes for one in beside)
        assert self.now.dead.get("bytes", 0) == sum(one.bytes for one in self.now.letters)

    # -- the end ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self._drain()
        finally:
            self.cell.store.client.delete(*self.cell.all_keys())
            self.cell.store.close()

    def _drain(self) -> None:
        """Let everything end: nothing may be left that has no time to live."""
        for worker in WORKERS:
            self.stop(worker)
        for name in list(self.paper.pauses):
            self.now = Census(self.cell)
            self.lift(name)
        left_dead = Census(self.cell).letters
        drop(self.cell.store, [one.entry for one in left_dead])
        for one in left_dead:
            self.paper.drop_letter(self.paper.notes[one.id])
        while self.paper.waiting():
            self.let_all_be_due(1000)
            self.now = Census(self.cell)
            self.take("w0", 100)
            if self.paper.holds("w0"):  # else all there was is of runs that have ended
                self.complete_all("w0")
        for run in self.paper.runs:
            self.cell.cancel(run)
        self.cell.store.client.delete(self.cell.keys.events(LEDGER))
        left = Census(self.cell)
        assert (left.waiting, left.pending, left.letters, left.due) == ([], {}, [], set())
        assert (left.tenants, left.parked, left.paused) == ({}, {}, {})
        assert self.server.keys_left(self.cell.keys.cell) == []

    # -- parts of several rules -------------------------------------------------------------------

    def take(self, worker: str, slots: int) -> None:
        """Fetch, and check what is handed over."""
        got = self.cell.fetch(worker, slots, lanes=LANES)
        for one in got:
            note = self.paper.notes[one.id]
            assert note.place is Place.WAITS
            assert not self.paper.is_held(one.id)
            assert not self.paper.stopped(note)
            assert one.live == self.paper.is_on(note.message.run)
            assert (one.attempts, one.suspected) == (note.deaths, note.suspected)
            self.paper.hand(worker, one)
        ready = sum(map(len, self.now.streams.values())) - len(self.now.pending)
        if not self.paper.pauses:
            assert len(got) >= min(slots, ready)

    def complete_all(self, worker: str) -> None:
        ended, expected = [], []
        for held in self.paper.holds(worker):
            note = self.paper.let_go(held)
            run, note.place = note.message.run, Place.DONE
            work = [*self.effects_of(note), effects.event(LEDGER, "done", note.message.id.encode())]
            ended.append((held.handed, run, work))
            expected.append("ok" if self.paper.is_on(run) else "ended")
            if expected[-1] == "ok":
                self.counted(note)
                self.paper.spend(run, self.outcome_of(note))
        self.paper.drained += len(ended)
        assert self.cell.complete_many(ended) == expected
        assert set(self.cell.complete_many(ended)) == {"stale"}

    def stop(self, worker: str) -> None:
        held = self.paper.holds(worker)
        assert self.cell.release(worker) == len(held)
        for one in held:
            self.paper.let_go(one)
        self.renew(worker)

    def lift(self, name: str) -> None:
        kind, _, what = name.partition(":")
        done = resume(self.cell.store, Kind(kind), what)
        assert (done.paused, done.brought_back) == (True, len(self.now.aside.get(name, ())))
        assert not resume(self.cell.store, Kind(kind), what).paused
        del self.paper.pauses[name]

    def let_all_be_due(self, tokens: int) -> None:
        """Let all be due, in its order: the real clock must not decide what is drawn next.

        So many retries start, the oldest ones, and more only as the clock brings tokens.
        """
        delayed, waiting = self.cell.keys.delayed(), self.cell.keys.retries("p")
        for place, member in enumerate(self.cell.redis("ZRANGE", delayed, 0, -1)):
            self.cell.redis("ZADD", delayed, self.sweeps * 1000 + place, member)
        self.sweeps += 1
        live = [one for one in Census(self.cell).delayed if self.paper.is_on(one.run)]
        retries = sorted((one.due, one.member) for one in live if one.retry)
        self.cell.fill_bucket(tokens)
        began = self.cell.now_ms()
        self.promoted()
        left = [member.decode() for member in self.cell.redis("ZRANGE", waiting, 0, -1)]
        brought = (self.cell.now_ms() - began) // 1000 + 1
        started = len(retries) - len(left)
        assert min(tokens, len(retries)) <= started <= tokens + brought
        assert left == [member for _, member in retries[started:]]
        assert self.cell.redis("ZCARD", delayed) == 0

    def promoted(self) -> list[int]:
        """Promote: it goes on with pauses that are being lifted, and drops what is of ended runs."""
        for one in Census(self.cell).delayed:
            if not self.paper.is_on(one.run):
                self.paper.notes[one.id].place = Place.DONE
        self.paper.drop_fan_ins()
        for name in [name for name, ending in self.paper.pauses.items() if ending]:
            del self.paper.pauses[name]
        return self.cell.promote(retries=BUDGET)

    def effects_of(self, note: Note) -> list[Effect]:
        if not note.message.join:
            return []
        name, _, index = note.message.join.rpartition("|")
        return [effects.part(name, index, OUTCOME)]

    def outcome_of(self, note: Note) -> int:
        """Return how many bytes its outcome has."""
        return len(OUTCOME) if note.message.join else 0

    def counted(self, note: Note) -> None:
        if note.message.join:
            self.paper.count(note)

    def drawn(self, data: st.DataObject) -> Held | None:
        """Return something that a worker holds, fetched first where they hold little."""
        if len(self.paper.held) < HELD:
            self.take(data.draw(st.sampled_from(WORKERS)), HELD)
        return data.draw(st.sampled_from(self.paper.held)) if self.paper.held else None

    def later(self) -> int:
        """Return a delay in ms, each far beyond the one before."""
        self.delays += 1
        return self.delays * 1_000_000

    def renew(self, worker: str) -> None:
        self.cell.renew(worker, suspects=int(worker in ISOLATING))
