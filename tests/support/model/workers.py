"""What workers do, and what is done when they die; each ending twice: the second is stale."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from agentq.store import effects
from tests.support.cell import KEEP_MS
from tests.support.model.machine import ISOLATING, LEDGER, WORKERS, Machine
from tests.support.model.paper import STEPS, Place, fan_out

workers = st.sampled_from(WORKERS)


class Workers(Machine):
    """The rules."""

    @rule(worker=workers, slots=st.integers(1, 6))
    def fetch(self, worker: str, slots: int) -> None:
        self.take(worker, slots)

    @rule(data=st.data(), follows=st.booleans(), ends=st.booleans())
    def complete(self, data: st.DataObject, *, follows: bool, ends: bool) -> None:
        if not (held := self.drawn(data)):
            return
        note = self.paper.let_go(held)
        run, on = note.message.run, self.paper.is_on(note.message.run)
        work = [*self.effects_of(note), effects.event(LEDGER, "done", note.message.id.encode())]
        used = self.outcome_of(note)
        if follows:
            after = self.paper.note("ship", run, "normal")
            work.append(effects.put(after.message))
            used += after.size
        if ends and run:
            work += [effects.event(run, "step", b"1"), effects.end(run, "done", b"1", KEEP_MS)]
        assert self.cell.complete(held.handed, *work, run=run) == ("ok" if on else "ended")
        assert self.cell.complete(held.handed, *work, run=run) == "stale"
        self.paper.drained += 1
        note.place = Place.DONE
        if not on:
            return
        if follows:
            self.paper.accept([after])
        self.counted(note)
        self.paper.spend(run, used)
        if ends and run:
            self.paper.end(run)

    @rule(data=st.data())
    def complete_many(self, data: st.DataObject) -> None:
        if held := self.drawn(data):
            self.complete_all(held.worker)

    @rule(data=st.data(), width=st.integers(0, 3), at_once=st.integers(1, 2), staged=st.booleans())
    def fan_out(self, data: st.DataObject, width: int, at_once: int, *, staged: bool) -> None:
        if not (held := self.drawn(data)):
            return
        note = self.paper.let_go(held)
        run = note.message.run
        name, join, members = self.paper.fan("pay", run, width, at_once)
        opened = fan_out(name, join, members, at_once)
        if staged:
            self.cell.stage(name, [one.message for one in members])
            opened = fan_out(name, join, members, at_once, staged=name)
        on = self.paper.is_on(run)
        done = effects.event(LEDGER, "done", note.message.id.encode())
        assert self.cell.complete(held.handed, opened, done, run=run) == ("ok" if on else "ended")
        assert self.cell.complete(held.handed, opened, done, run=run) == "stale"
        self.paper.drained += 1
        note.place = Place.DONE
        if not on:
            self.paper.staged |= {name} if staged and width else set()
            return
        self.paper.spend(run, sum(one.size for one in (join.body, *members)), width)
        if self.paper.is_on(run):
            self.paper.open(name, join, members, at_once)

    @rule(data=st.data(), delayed=st.booleans(), retry=st.booleans())
    def fail(self, data: st.DataObject, *, delayed: bool, retry: bool) -> None:
        if not (held := self.drawn(data)):
            return
        self.paper.let_go(held)
        after = self.later() if delayed else 0
        assert self.cell.fail(held.handed, after_ms=after, retry=retry) == "ok"
        assert self.cell.fail(held.handed, after_ms=after, retry=retry) == "stale"

    @rule(data=st.data(), delayed=st.booleans())
    def retry_as_celery_does(self, data: st.DataObject, *, delayed: bool) -> None:
        if not (held := self.drawn(data)):
            return
        note = self.paper.let_go(held)
        run, again = note.message.run, effects.again(note.message._replace(due_ms=0))
        if delayed:
            again = effects.again(note.message._replace(due_ms=-self.later()))
        on = self.paper.is_on(run)
        assert self.cell.complete(held.handed, again, run=run) == ("ok" if on else "ended")
        assert self.cell.complete(held.handed, again, run=run) == "stale"
        self.paper.drained += 1
        if not on:
            note.place = Place.DONE
            return
        note.deaths = note.suspected = 0
        self.paper.spend(run, note.size)

    @rule(data=st.data(), step=st.sampled_from(STEPS), dead=st.booleans())
    def park(self, data: st.DataObject, step: str, *, dead: bool) -> None:
        if not (held := self.drawn(data)):
            return
        note = self.paper.let_go(held)
        terms = {"after_ms": self.later(), "limit_ms": 0 if dead else 1 << 40}
        assert self.cell.park(held.handed, step, **terms) == ("dead" if dead else "ok")
        assert self.cell.park(held.handed, step, **terms) == "stale"
        if dead:
            self.paper.give_up(note)

    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        if not (held := self.drawn(data)):
            return
        note = self.paper.let_go(held)
        m = note.message
        letter = effects.dead(
            "no good", m.id, 0, m.headers, m.body, pool="p", lane=m.lane, run=m.run, join=m.join
        )
        assert self.cell.complete(held.handed, letter) == "ok"
        assert self.cell.complete(held.handed, letter) == "stale"
        self.paper.drained += 1
        note.place = Place.DEAD

    @precondition(lambda self: self.paper.lost)
    @rule(data=st.data())
    def end_what_is_not_owned_any_more(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.paper.lost))
        assert self.cell.complete(one, effects.event(LEDGER, "done", one.id.encode())) == "stale"
        assert self.cell.fail(one) == "stale"
        assert self.cell.died_alone(one) == "stale"
        assert self.cell.park(one) == "stale"

    @rule(data=st.data())
    def die_alone(self, data: st.DataObject) -> None:
        if not (held := self.drawn(data)):
            return
        note = self.paper.let_go(held)
        assert self.cell.died_alone(held.handed) == "ok"
        assert self.cell.died_alone(held.handed) == "stale"
        self.paper.charge(note)

    @rule(worker=workers, how=st.sampled_from(["die", "stop", "stand still"]))
    def end_a_worker(self, worker: str, how: str) -> None:
        {"die": self._die, "stop": self.stop, "stand still": self._stand_still}[how](worker)

    def _die(self, worker: str) -> None:
        self.cell.expire_lease(worker)
        held = self.paper.holds(worker)
        assert self.cell.reap() == (len(held), worker)
        assert not self.cell.renew(worker, first=False)
        for one in held:
            note = self.paper.let_go(one)
            if worker in ISOLATING or len(held) > 1:
                note.suspected += 1
            else:
                self.paper.charge(note)
        self.renew(worker)

    def _stand_still(self, worker: str) -> None:
        """Nobody could renew: a lease that ran out meanwhile is given a new term."""
        self.cell.expire_lease(worker)
        assert self.cell.reap(gap_ms=-1) == (0, "")
        assert self.cell.redis("ZSCORE", self.cell.keys.workers(), worker) > self.cell.now_ms()
