"""Any order of calls by producers, workers and reapers: each id is in one place, and ends once."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentq.store import effects
from tests.support.cell import LIMIT, Cell, Handed, message
from tests.support.redis_server import Server

WORKERS = ["w0", "w1", "w2"]
ISOLATING = {"w0", "w1"}
"""Whose deaths make suspects; what dies with another one is charged."""
RUN, CANCELLED = "kept", "cancelled"

workers = st.sampled_from(WORKERS)


class Queue(RuleBasedStateMachine):
    """What the functions promise, beside a model that a child could keep on paper."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell(f"{self.url}?cell={uuid4().hex[:12]}")
        for run in (RUN, CANCELLED):
            self.cell.enqueue(run=run)
        for worker in WORKERS:
            self._renew(worker)
        self.accepted: dict[str, str] = {}  # id -> run
        self.held: dict[str, list[Handed]] = {worker: [] for worker in WORKERS}
        self.lost: list[Handed] = []
        self.ended: set[str] = set()
        self.deaths: dict[str, int] = {}
        self.suspected: dict[str, int] = {}
        self.over: set[str] = set()  # runs
        self.delays = 0

    # -- what anyone may do at any time -----------------------------------------------------------

    @rule(
        runs=st.lists(st.sampled_from([RUN, CANCELLED]), min_size=1, max_size=4),
        delayed=st.booleans(),
        again=st.booleans(),
    )
    def enqueue(self, runs: list[str], *, delayed: bool, again: bool) -> None:
        for run in runs:
            id_ = f"t{len(self.accepted)}"
            for _ in range(1 + again):
                due = -self._later() if delayed else 0
                self.cell.enqueue(message(id_, run=run, due=due), id_=id_)
            self.accepted[id_] = run

    @rule(worker=workers, slots=st.integers(1, 4))
    def fetch(self, worker: str, slots: int) -> None:
        for one in self.cell.fetch(worker, slots):
            assert one.live == (self.accepted[one.id] not in self.over)
            assert one.attempts == self.deaths.get(one.id, 0)
            assert one.suspected == self.suspected.get(one.id, 0)
            self.held[worker].append(one)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        one = self._taken(data)
        run = self.accepted[one.id]
        done = effects.event(run, "done", one.id.encode())
        expected = "ended" if run in self.over else "ok"
        assert self.cell.complete(one, done, run=run) == expected
        self.ended.add(one.id)
        self.lost.append(one)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), delayed=st.booleans(), retry=st.booleans())
    def fail(self, data: st.DataObject, *, delayed: bool, retry: bool) -> None:
        one = self._taken(data)
        after = self._later() if delayed else 0
        assert self.cell.fail(one, after_ms=after, retry=retry) == "ok"
        self.lost.append(one)

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def complete_what_is_not_owned_any_more(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.lost))
        assert self.cell.complete(one, effects.event(RUN, "done", one.id.encode())) == "stale"
        assert self.cell.fail(one) == "stale"

    @rule(worker=workers)
    def die(self, worker: str) -> None:
        self.cell.expire_lease(worker)
        assert self.cell.reap() == (len(self.held[worker]), worker)
        for one in self.held[worker]:
            if worker in ISOLATING:
                self.suspected[one.id] = self.suspected.get(one.id, 0) + 1
            else:
                self._charge(one)
        self._drop(worker)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def die_alone(self, data: st.DataObject) -> None:
        one = self._taken(data)
        assert self.cell.died_alone(one) == "ok"
        self._charge(one)
        self.lost.append(one)

    def _charge(self, one: Handed) -> None:
        self.deaths[one.id] = self.deaths.get(one.id, 0) + 1
        if self.deaths[one.id] >= LIMIT:
            self.ended.add(one.id)
            self.over.add(self.accepted[one.id])

    @rule(worker=workers)
    def stop_in_order(self, worker: str) -> None:
        assert self.cell.release(worker) == len(self.held[worker])
        self._drop(worker)

    @rule()
    def promote(self) -> None:
        """Let all be due, in its order: the real clock must not decide what is drawn next."""
        delayed = self.cell.keys.delayed()
        for place, member in enumerate(self.cell.redis("ZRANGE", delayed, 0, -1)):
            self.cell.redis("ZADD", delayed, place + 1, member)
        self.cell.promote()
        assert self.cell.redis("ZCARD", delayed) == 0

    def _later(self) -> int:
        """Return a delay in ms, each far beyond the one before."""
        self.delays += 1
        return self.delays * 1_000_000

    @rule()
    def cancel(self) -> None:
        assert self.cell.cancel(CANCELLED) == int(CANCELLED not in self.over)
        self.over.add(CANCELLED)

    def _taken(self, data: st.DataObject) -> Handed:
        worker = data.draw(st.sampled_from([name for name, held in self.held.items() if held]))
        return self.held[worker].pop(data.draw(st.integers(0, len(self.held[worker]) - 1)))

    def _drop(self, worker: str) -> None:
        self.lost += self.held[worker]
        self.held[worker] = []
        self._renew(worker)

    def _renew(self, worker: str) -> None:
        self.cell.renew(worker, suspects=int(worker in ISOLATING))

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def each_unfinished_id_is_in_exactly_one_place(self) -> None:
        queued, pending = self._queued()
        delayed = [key.rpartition(b"#")[0].decode() for key in self._hash_keys()]
        assert sorted(queued + delayed) == sorted(self.accepted.keys() - self.ended)
        assert pending == {one.entry for held in self.held.values() for one in held}

    @invariant()
    def nothing_ends_twice(self) -> None:
        done: list[str] = []
        for run in (RUN, CANCELLED):
            events = self.cell.redis("XRANGE", self.cell.keys.events(run), "-", "+")
            done += [fields[b"d"].decode() for _, fields in events if fields[b"e"] == b"done"]
        dead = [letter[b"i"].decode() for letter in self.cell.dead_letters()]
        assert len(set(done + dead)) == len(done + dead)
        assert set(done + dead) <= self.ended

    def _queued(self) -> tuple[list[str], set[str]]:
        ids: list[str] = []
        pending: set[str] = set()
        for stream in (
            self.cell.keys.stream("p", "normal"),
            self.cell.keys.returned("p", "normal"),
        ):
            if not self.cell.redis("EXISTS", stream):
                continue
            entries = self.cell.redis("XRANGE", stream, "-", "+")
            ids += [fields[b"i"].decode() for _, fields in entries]
            held = self.cell.store.client.xpending_range(stream, "w", "-", "+", 1000)
            pending |= {one["message_id"].decode() for one in held}
        return ids, pending

    def _hash_keys(self) -> list[bytes]:
        return list(self.cell.redis("HKEYS", f"{self.cell.keys.delayed()}:m"))

    def teardown(self) -> None:
        self.cell.store.client.delete(*self.cell.all_keys())
        self.cell.store.close()


@pytest.mark.timeout(60)
def test_any_order_of_calls_keeps_each_id_in_one_place(session_server: Server) -> None:
    Queue.url = session_server.url
    run_state_machine_as_test(
        Queue,
        settings=settings(
            max_examples=150,
            stateful_step_count=50,
            deadline=timedelta(seconds=2),
            phases=[Phase.generate],  # shrinking takes minutes; the steps that failed are printed
            suppress_health_check=list(HealthCheck),
        ),
    )
