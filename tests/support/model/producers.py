"""What producers do: submit, enqueue, publish groups; each call twice."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from agentq.store import effects
from agentq.store.calls import Accepted, Duplicate, Full
from tests.support.model.machine import Machine, lanes
from tests.support.model.paper import FLOWS, MEMBERS, PER_TENANT, STEPS, TENANTS, Run

LENGTH = 12
"""Most messages of a lane that a producer may add to."""

steps = st.sampled_from(STEPS)


class Producers(Machine):
    """The rules."""

    @rule(tenant=st.sampled_from(TENANTS), flow=st.sampled_from(FLOWS), step=steps, lane=lanes)
    def submit(self, tenant: str, flow: str, step: str, lane: str) -> None:
        run = self.paper.name("r")
        full = self.paper.tenants()[tenant] >= PER_TENANT
        self.paper.runs[run] = Run(tenant, flow)
        first = self.paper.note(step, run, lane)
        for again in (False, True):
            answer = self.cell.enqueue(
                first.message, run=run, tenant=tenant, max_per_tenant=PER_TENANT,
                max_members=MEMBERS, deadline_ms=-10_000_000, lane=lane,
            )  # fmt: skip
            expected = Full if full else Duplicate if again else Accepted
            assert isinstance(answer, expected)
        if full:
            del self.paper.runs[run]
        else:
            self.paper.accept([first])

    @rule(data=st.data(), step=steps, lane=lanes, delayed=st.booleans())
    def enqueue(self, data: st.DataObject, step: str, lane: str, *, delayed: bool) -> None:
        run = data.draw(st.sampled_from(["", *self.paper.runs]))
        note = self.paper.note(step, run, lane, due=-self.later() if delayed else 0)
        id_ = note.message.id
        full = self.now.length(lane) >= LENGTH
        for again in (False, True):
            answer = self.cell.enqueue(note.message, id_=id_, lane=lane, limit=LENGTH)
            assert isinstance(answer, Full if full else Duplicate if again else Accepted)
        if not full:
            self.paper.accept([note])

    @rule(data=st.data(), lane=lanes, count=st.integers(1, 4))
    def open_a_group(self, data: st.DataObject, lane: str, count: int) -> None:
        run = data.draw(st.sampled_from(["", *self.paper.runs]))
        notes = [self.paper.note("pay", run, lane) for _ in range(count)]
        group = self.paper.name("g")
        self.cell.stage(group, [note.message for note in notes])
        self.cell.stage(group, [note.message for note in notes])  # a repeated chunk
        assert self.cell.open(effects.open_group(group, "p", lane), id_=group) == b"ok"
        assert self.cell.open(effects.open_group(group, "p", lane), id_=group) == b"dup"
        self.paper.accept(notes)
