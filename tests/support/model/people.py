"""What people and time do: pause, purge, replay, drop, cancel; what is due, what is late."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from agentq.ops.dead import drop
from agentq.ops.pausing import Kind, pause, purge
from agentq.store import calls
from agentq.store.calls import Fitting
from tests.support.model.machine import Machine
from tests.support.model.paper import FLOWS, STEPS, TENANTS, Note, Place

PAUSES = 2
"""At a time: else nothing moves."""

pauses = st.sampled_from(
    [(Kind.POOL, "p"), *((Kind.STEP, step) for step in STEPS),
     *((Kind.FLOW, flow) for flow in FLOWS), *((Kind.TENANT, tenant) for tenant in TENANTS)]
)  # fmt: skip


class People(Machine):
    """The rules."""

    @rule(tokens=st.integers(0, 3))
    def promote(self, tokens: int) -> None:
        self.let_all_be_due(tokens)

    @precondition(lambda self: self.paper.runs)
    @rule(data=st.data(), cancelled=st.booleans())
    def end_a_run(self, data: st.DataObject, *, cancelled: bool) -> None:
        run = data.draw(st.sampled_from(list(self.paper.runs)))
        was = self.paper.end(run)
        if cancelled:
            assert self.cell.cancel(run) == int(was)
            assert self.cell.cancel(run) == 0
        elif was:
            self.cell.pass_deadline(run)
            assert self.promoted()[1] == 1
            assert self.cell.run_state(run) == "expired"

    # -- people -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.paper.pauses) < PAUSES)
    @rule(what=pauses)
    def pause(self, what: tuple[Kind, str]) -> None:
        name = f"{what[0]}:{what[1]}"
        assert pause(self.cell.store, *what) == (self.paper.pauses.get(name) is not False)
        assert not pause(self.cell.store, *what)
        self.paper.pauses[name] = False

    @precondition(lambda self: self.paper.pauses)
    @rule(data=st.data(), most=st.none() | st.integers(1, 3))
    def lift_a_pause(self, data: st.DataObject, most: int | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.paper.pauses)))
        if most is None:
            self.lift(name)
            return
        aside = len(self.now.aside.get(name, ()))
        was, moved, left = self.cell.store.call(calls.resume(self.cell.prefix, name, most))
        assert (was, moved, left) == (1, min(most, aside), max(0, aside - most))
        self.paper.pauses[name] = True
        if not left:
            del self.paper.pauses[name]

    @rule(
        filters=st.dictionaries(
            st.sampled_from(["lane", "step", "flow", "tenant"]),
            st.integers(0, 1),
            min_size=2,
            max_size=3,
        )
    )
    def purge(self, filters: dict[str, int]) -> None:
        names = {"lane": ("normal", "low"), "step": STEPS, "flow": FLOWS, "tenant": TENANTS}
        chosen = {kind: names[kind][number] for kind, number in filters.items()}
        found = [
            note
            for note in map(self.paper.notes.__getitem__, self.paper.waiting())
            if all(note.labels[kind] == name for kind, name in chosen.items())
        ]
        fitting = Fitting(pool="p", **chosen)  # type: ignore[arg-type]
        assert purge(self.cell.store, fitting, reason="purged") == len(found)
        assert purge(self.cell.store, fitting, reason="purged") == 0
        for note in found:
            note.place, note.awaited = Place.DEAD, self.paper.awaits(note)

    @precondition(lambda self: self.now.letters)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.now.letters), min_size=1, max_size=4))
        expected = [self._replayed(self.paper.notes[one.id]) for one in chosen]
        assert self.cell.replay([one.entry for one in chosen]) == expected

    def _replayed(self, note: Note) -> str:
        if note.place is not Place.DEAD:
            return "gone"
        if not self.paper.is_on(note.message.run):
            return "ended"
        if note.message.join and self.paper.counted(note):
            return "counted"
        note.place, note.deaths, note.suspected, note.awaited = Place.WAITS, 0, 0, False
        return "ok"

    @precondition(lambda self: self.now.letters)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.now.letters), min_size=1, max_size=4))
        entries = [one.entry for one in chosen]
        assert drop(self.cell.store, entries) == len(set(entries))
        assert drop(self.cell.store, entries) == 0
        for one in chosen:
            self.paper.drop_letter(self.paper.notes[one.id])
