"""Where every message of a cell is at one moment, and what its counters say of that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.support.cell import Cell

_SCRIPT = (Path(__file__).parent / "census.lua").read_text()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits outside of its queue."""

    id: str
    bytes: int
    """As it is packed."""
    pool: str
    lane: str
    lacking: str = ""
    """What nobody has the code of, where it is parked for that."""
    due: float = 0
    new: bool = False
    """Whether it was never in its queue: a producer delayed it."""
    run: str = ""
    retry: bool = False
    """Whether it takes a token when it starts."""
    member: str = ""
    """Its name in the table of what is delayed."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter."""

    entry: str
    id: str
    bytes: int


class Census:
    """What one look found."""

    def __init__(self, cell: Cell) -> None:
        found = orjson.loads(cell.redis("EVAL", _SCRIPT, 0, cell.prefix))
        self.streams: dict[str, list[list[str]]] = dict(found["streams"])
        """``s:<pool>:<lane>`` -> [entry, id]s, in workers' hands or not."""
        self.pending = {(stream, entry): worker for stream, entry, worker in found["pending"]}
        self.delayed = [Waiting(*one[:5], float(one[5]), *one[6:]) for one in found["delayed"]]
        self.without_due = [one[0] for one in found["delayed"] if one[5] is False]
        self.without_message = list(found["lost"])
        """Members of the one table of delayed work that the other lacks."""
        self.of_runs = sorted(map(tuple, found["of_runs"]))
        """(run, member) of what is delayed, as it is known by its run."""
        self.ended = set(found["ended"])
        """Runs whose delayed messages are to be dropped."""
        self.aside = _lists(found["aside"], "aside:")
        self.groups = _lists(found["groups"], "group:")
        self.staged = _lists(found["staged"], "stage:")
        """What was staged and not opened."""
        self.behind = _lists(found["behind"], "join:")
        """Members of fan-ins beyond `at_once`."""
        self.letters = [Letter(*one) for one in found["letters"]]
        self.runs: dict[str, dict[str, str]] = dict(found["runs"])
        self.tenants = _numbers(found["tenants"])
        self.parked = _numbers(found["parked"])
        self.paused: dict[str, str] = dict(found["paused"])
        self.load = _numbers(found["load"])
        self.dead = _numbers(found["dead:n"])
        self.due = set(found["due"])

    @property
    def waiting(self) -> list[str]:
        """Ids of what waits for a worker or is in the hands of one, each as often as it is there."""
        beside = (self.delayed, *self.aside.values(), *self.groups.values())
        queued = [id_ for entries in self.streams.values() for _, id_ in entries]
        return queued + [one.id for some in beside for one in some]

    def beside(self, lane: str, *, new: bool) -> list[Waiting]:
        """What waits beside a lane's queue: *new*, delayed by producers; else what comes back."""
        some = [one for one in self.delayed if one.new == new]
        some += [] if new else [one for aside in self.aside.values() for one in aside]
        return [one for one in some if one.lane == lane]

    def length(self, lane: str) -> int:
        """Messages that a lane of pool p counts as its own."""
        return len(self.streams.get(f"s:p:{lane}", ())) + len(self.beside(lane, new=False))


def _lists(found: Any, kind: str) -> dict[str, list[Waiting]]:
    return {
        name.removeprefix(kind): [Waiting(*one) for one in some]
        for name, some in dict(found).items()
    }


def _numbers(found: Any) -> dict[str, int]:
    return {name: int(value) for name, value in dict(found).items()}


def ids(some: Iterable[Waiting]) -> list[str]:
    """Return their ids."""
    return [one.id for one in some]
