"""What producers do: submit, enqueue, publish groups; each call twice."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from agentq.store import effects
from agentq.store.calls import Accepted, Duplicate, Full
from tests.support.model.machine import Machine, lanes
from tests.support.model.paper import FLOWS, MEMBERS, PER_TENANT, STEPS, TENANTS, Run, fan_out

LENGTH = 12
"""Most messages of a lane that a producer may add to, and most that are delayed."""

steps = st.sampled_from(STEPS)


class Producers(Machine):
    """The rules."""

    @rule(
        tenant=st.sampled_from(TENANTS), flow=st.sampled_from(FLOWS), lane=lanes,
        width=st.integers(1, 3), at_once=st.integers(1, 2),
    )  # fmt: skip
    def submit(self, tenant: str, flow: str, lane: str, width: int, at_once: int) -> None:
        """A run that begins with a step and a fan-out."""
        run = self.paper.name("r")
        full = self.paper.tenants()[tenant] >= PER_TENANT
        self.paper.runs[run] = Run(tenant, flow)
        first = self.paper.note("pay", run, lane)
        name, join, members = self.paper.fan("ship", run, width, at_once)
        for again in (False, True):
            answer = self.cell.enqueue(
                first.message, fan_out(name, join, members, at_once), run=run, tenant=tenant,
                max_per_tenant=PER_TENANT, max_members=MEMBERS, deadline_ms=-10_000_000, lane=lane,
            )  # fmt: skip
            assert isinstance(answer, Full if full else Duplicate if again else Accepted)
        if full:
            del self.paper.runs[run]
        else:
            self.paper.accept([first])
            self.paper.open(name, join, members, at_once)

    @rule(data=st.data(), step=steps, lane=lanes, delays=st.lists(st.booleans(), max_size=4))
    def enqueue(self, data: st.DataObject, step: str, lane: str, delays: list[bool]) -> None:
        run = data.draw(st.sampled_from(["", *self.paper.runs]))
        there = {False: self.now.length(lane), True: len(self.now.beside(lane, new=True))}
        for delayed in delays:
            note = self.paper.note(step, run, lane, due=-self.later() if delayed else 0)
            full = there[delayed] >= LENGTH
            for again in (False, True):
                answer = self.cell.enqueue(
                    note.message, id_=note.message.id, lane=lane, limit=LENGTH
                )
                assert isinstance(answer, Full if full else Duplicate if again else Accepted)
            if not full:
                self.paper.accept([note])
                there[delayed] += 1

    @rule(data=st.data(), lane=lanes, count=st.integers(1, 6))
    def open_a_group(self, data: st.DataObject, lane: str, count: int) -> None:
        run = data.draw(st.sampled_from(["", *self.paper.runs]))
        notes = [self.paper.note("pay", run, lane) for _ in range(count)]
        group = self.paper.name("g")
        self.cell.stage(group, [note.message for note in notes])
        self.cell.stage(group, [note.message for note in notes])  # a repeated chunk
        assert self.cell.open(effects.open_group(group, "p", lane), id_=group) == b"ok"
        assert self.cell.open(effects.open_group(group, "p", lane), id_=group) == b"dup"
        self.paper.accept(notes)
