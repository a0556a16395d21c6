"""The functions' promises as a child could keep them on paper: one place for each message.

waits    ready, delayed, parked, put aside, in an opened group   --> a worker's hands
behind   a member beyond `at_once`                               --> waits
dead     a letter                                                --> waits, or gone for good
done     ended; nothing of it is left
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from agentq.store import effects
from agentq.store.effects import Message
from tests.support.cell import LIMIT, Handed

STEPS, FLOWS, TENANTS = ("pay", "ship"), ("f", "g"), ("acme", "other")
MEMBERS = 6
"""Budget of each run."""
PER_TENANT = 3
BODY = b'[["b"],{},{}]'


class Place(Enum):
    """Where a message is."""

    WAITS = "waits"
    BEHIND = "behind"
    DEAD = "dead"
    DONE = "done"


@dataclass
class Note:
    """What is known of one message."""

    message: Message
    labels: dict[str, str]
    """Step, flow and tenant, as pauses and filters name them; pool and lane."""
    place: Place = Place.WAITS
    deaths: int = 0
    suspected: int = 0
    awaited: bool = False
    """Whether its run went on when it was purged, and waits for it."""

    @property
    def size(self) -> int:
        return len(self.message.headers) + len(self.message.body)


@dataclass
class Run:
    """One run."""

    tenant: str
    flow: str
    on: bool = True
    members: int = 0
    bytes: int = 0


@dataclass
class Join:
    """One fan-in."""

    run: str
    width: int
    body: Note
    behind: list[str]
    outcomes: set[str] = field(default_factory=set)
    dropped: bool = False
    """Whether it was forgotten with its run."""


@dataclass
class Held:
    """One message in a worker's hands."""

    worker: str
    handed: Handed


class Paper:
    """The whole cell."""

    def __init__(self) -> None:
        self.notes: dict[str, Note] = {}
        self.runs: dict[str, Run] = {}
        self.joins: dict[str, Join] = {}
        self.held: list[Held] = []
        self.lost: list[Handed] = []
        """What was handed out once and is not that worker's any more."""
        self.pauses: dict[str, bool] = {}
        """Pause -> whether it is being lifted."""
        self.staged: set[str] = set()
        """What was staged for a run that had ended: it is left to its time to live."""
        self.drained = 0
        """Deliveries that ended."""
        self.named = 0

    # -- new things -----------------------------------------------------------------------------------

    def name(self, kind: str) -> str:
        self.named += 1
        return f"{kind}{self.named}"

    def note(self, step: str, run: str, lane: str, *, join: str = "", due: int = 0) -> Note:
        """Write a message down; it is nowhere before `accept`."""
        id_ = self.name("m")
        flow = self.runs[run].flow if run else ""
        tenant = self.runs[run].tenant if run else ""
        head = b'{"headers":{"task":"%s","aq":{"flow":"%s"}}}' % (step.encode(), flow.encode())
        message = Message("p", lane, due, id_, run, join, head, BODY)
        labels = {"pool": "p", "lane": lane, "step": step, "flow": flow, "tenant": tenant}
        return Note(message, labels)

    def accept(self, notes: Iterable[Note], place: Place = Place.WAITS) -> None:
        for note in notes:
            note.place = place
            self.notes[note.message.id] = note

    # -- what happens to what is held -----------------------------------------------------------------

    def hand(self, worker: str, handed: Handed) -> None:
        self.held.append(Held(worker, handed))

    def let_go(self, held: Held) -> Note:
        self.held.remove(held)
        self.lost.append(held.handed)
        return self.notes[held.handed.id]

    def holds(self, worker: str) -> list[Held]:
        return [one for one in self.held if one.worker == worker]

    def is_held(self, id_: str) -> bool:
        return any(one.handed.id == id_ for one in self.held)

    def charge(self, note: Note) -> None:
        note.deaths += 1
        alone = not note.message.run and not note.message.join
        if note.deaths >= LIMIT + alone:
            self.give_up(note)

    def give_up(self, note: Note) -> None:
        """A letter; its fan-in counts it, else its run fails."""
        note.place = Place.DEAD
        if note.message.join:
            self.count(note)
        elif note.message.run:
            self.end(note.message.run)

    # -- fan-ins and runs -----------------------------------------------------------------------------

    def fan(self, step: str, run: str, width: int, at_once: int) -> tuple[str, Join, list[Note]]:
        """Write a fan-in down; it is nowhere before `open`."""
        name = self.name("j")
        members = [self.note(step, run, "low", join=f"{name}|{index}") for index in range(width)]
        behind = [one.message.id for one in members[at_once:]]
        return name, Join(run, width, self.note("ship", run, "high"), behind), members

    def open(self, name: str, join: Join, members: list[Note], at_once: int) -> None:
        self.joins[name] = join
        self.accept(members[:at_once])
        self.accept(members[at_once:], Place.BEHIND)
        self.settle(join)

    def count(self, note: Note) -> None:
        """Count a member's outcome: each once; the last one lets the body wait for a worker."""
        name, _, index = note.message.join.rpartition("|")
        join = self.joins[name]
        if join.dropped or index in join.outcomes or len(join.outcomes) == join.width:
            return
        join.outcomes.add(index)
        if join.behind:
            self.notes[join.behind.pop(0)].place = Place.WAITS
        self.settle(join)

    def drop_fan_ins(self) -> None:
        """Forget those of runs that have ended, with the members that wait for a place."""
        for join in self.joins.values():
            if not self.is_on(join.run):
                for id_ in join.behind:
                    self.notes[id_].place = Place.DONE
                join.behind, join.dropped = [], True

    def settle(self, join: Join) -> None:
        if len(join.outcomes) == join.width:
            self.accept([join.body])

    def counted(self, note: Note) -> bool:
        """Whether a letter's fan-in takes its outcome no more."""
        name, _, index = note.message.join.rpartition("|")
        join = self.joins[name]
        return index in join.outcomes or len(join.outcomes) == join.width

    def awaits(self, note: Note) -> bool:
        """Whether its run waits for it."""
        run, join = note.message.run, note.message.join
        return bool(run) and self.is_on(run) and not (join and self.counted(note))

    def drop_letter(self, note: Note) -> None:
        """Drop a letter for good: its run fails where it waits for it."""
        if note.place is Place.DEAD and note.awaited and self.awaits(note):
            self.end(note.message.run)
        note.place = Place.DONE

    def is_on(self, run: str) -> bool:
        return not run or self.runs[run].on

    def end(self, run: str) -> bool:
        was, self.runs[run].on = self.runs[run].on, False
        return was

    def spend(self, run: str, used: int, members: int = 0) -> None:
        """Charge a run; beyond its budget of members it fails."""
        if run:
            self.runs[run].bytes += used
            self.runs[run].members += members
            if self.runs[run].members > MEMBERS:
                self.end(run)

    def tenants(self) -> Counter[str]:
        return Counter(run.tenant for run in self.runs.values() if run.on)

    # -- what is to be found ----------------------------------------------------------------------

    def at(self, place: Place) -> list[str]:
        return [id_ for id_, note in self.notes.items() if note.place is place]

    def waiting(self) -> list[str]:
        """Ids of what waits and nobody holds."""
        held = {one.handed.id for one in self.held}
        return [id_ for id_ in self.at(Place.WAITS) if id_ not in held]

    def stopping(self, note: Note) -> list[str]:
        """The pauses that stop a message, those that are being lifted included."""
        pairs = (pause.split(":", 1) for pause in self.pauses)
        return [f"{kind}:{name}" for kind, name in pairs if note.labels[kind] == name]

    def stopped(self, note: Note) -> bool:
        return any(not self.pauses[pause] for pause in self.stopping(note))


def fan_out(
    name: str, join: Join, members: list[Note], at_once: int, *, staged: str = ""
) -> effects.Effect:
    """The effect that opens a fan-in, with its members or the name they were staged under."""
    return effects.join(
        name, width=join.width, at_once=at_once, ttl_ms=60_000, run=join.run,
        body=[join.body.message], members=staged or [note.message for note in members],
        staged_bytes=sum(note.size for note in members),
    )  # fmt: skip
