"""The accounts of a soak: the ledger and how each piece ended, beside what should have been.

not ended      accepted pieces that did not end as they should, by state or value, or whose
               steps did not all end
twice          labels under more than one task id: the piece was accepted twice
doubled        beginnings of a step beyond the first that neither a retry nor a fault explains
ended twice    runs that tell of two ends, of themselves or of one of their steps
bodies         reviews of runs and bodies of chords that a piece ended without, or had too many of
untimely       delayed work before its time, steps behind their deadline
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tests.fault.scenarios.ground import Line
from tests.fault.soak.offer import COUNTDOWN_S, DEADLINE_S, SLOW_S, SLOW_WIDTH, Piece

_SLACK_S = 0.5
"""Between an instant noted here and the same one on Redis' clock."""


class Accounts:
    """Read-only, once the soak is over."""

    def __init__(
        self, *, pieces: list[Piece], lines: Iterable[Line], explained: Counter[str]
    ) -> None:
        self._pieces = pieces
        self._lines = list(lines)
        self._explained = explained
        self._ids: defaultdict[str, set[str]] = defaultdict(set)
        self._begun: Counter[str] = Counter()
        """By task id, as the two below."""
        self._failed: Counter[str] = Counter()
        self._ended: dict[str, float] = {}
        """By label: when it ended first."""
        for line in self._lines:
            self._ids[line.label].add(line.task)
            if line.what == "begin":
                self._begun[line.task] += 1
            elif line.what == "fail":
                self._failed[line.task] += 1
            else:
                self._ended.setdefault(line.label, line.at)

    def problems(self) -> dict[str, list[str]]:
        """Return what does not hold, by what it is; each names the labels."""
        return {
            "not ended as it should": [x for piece in self._pieces for x in _wrong(piece)]
            + self._unfinished(),
            "accepted twice": [label for label, ids in self._ids.items() if len(ids) > 1],
            "effects doubled": self._doubled(),
            "ended twice": [piece.label for piece in self._pieces if piece.ends > 1],
            "bodies not exactly once": self._bodies(),
            "before or behind its time": self._untimely(),
        }

    def steps_between(self, begin: float, end: float) -> int:
        """Return how many steps ended within a time."""
        return sum(begin <= at < end for at in self._ended.values())

    @property
    def again(self) -> int:
        """How many beginnings a fault explains."""
        return sum(n - 1 - self._failed[task] for task, n in self._begun.items() if n > 1)

    def _unfinished(self) -> list[str]:
        """Return the parts of pieces that should have ended and have not."""
        return [
            f"{label} has no end"
            for piece in self._pieces
            if piece.state in ("done", "success")
            for label in _parts(piece)
            if label not in self._ended
        ]

    def _doubled(self) -> list[str]:
        return [
            f"{task} begun {n} times, {self._failed[task]} failed, {self._explained[task]} explained"
            for task, n in self._begun.items()
            if n > 1 + self._failed[task] + self._explained[task]
        ]

    def _bodies(self) -> list[str]:
        """A body that begins again is counted among the doubled, unless a fault explains it."""
        wanted = {
            f"{piece.label}.body"
            for piece in self._pieces
            if piece.kind in ("fan", "chord")
            or (piece.kind == "cancelled" and piece.state == "done")
        }
        found = {label for label in self._ended if label.endswith(".body")}
        return sorted(wanted ^ found)

    def _untimely(self) -> list[str]:
        earliest = {
            piece.label: piece.asked + COUNTDOWN_S - _SLACK_S
            for piece in self._pieces
            if piece.kind == "delayed"
        }
        latest = {
            piece.label: piece.accepted + DEADLINE_S + _SLACK_S
            for piece in self._pieces
            if piece.kind == "late"
        }
        return [
            f"{line.label} at {line.at:.1f}"
            for line in self._lines
            if line.what == "begin"
            and not earliest.get(line.label, 0.0)
            <= line.at
            <= latest.get(line.label.partition(".")[0], line.at)
        ]


def _wrong(piece: Piece) -> list[str]:
    """Say how a piece ended, if not as it should."""
    states, value = _right(piece)
    if not piece.accepted:
        return [f"{piece.label} ({piece.kind}) was not accepted"]
    if piece.state not in states or (value is not None and piece.value != value):
        return [f"{piece.label} ({piece.kind}): {piece.state or 'no end'} {piece.value}"]
    return []


def _right(piece: Piece) -> tuple[set[str], object]:
    """Return the states in which a piece should end, and the value, where it has one."""
    match piece.kind:
        case "fan":
            return {"done"}, [f"{piece.label}.{number}" for number in range(piece.width)]
        case "again":
            return {"done"}, piece.label
        case "late":
            return {"expired"}, None
        case "cancelled":
            # One that was asked for behind a standstill may find the run over.
            in_time = piece.cancelled - piece.asked < SLOW_S
            return ({"cancelled"} if in_time else {"cancelled", "done"}), None
        case "chord":
            return {"success"}, piece.width
        case "task" | "delayed" | "flaky":
            return {"success"}, piece.label


def _parts(piece: Piece) -> list[str]:
    """Return the labels that a piece which ended well has in the ledger."""
    match piece.kind:
        case "fan" | "cancelled" | "late":
            width = piece.width if piece.kind == "fan" else SLOW_WIDTH
            members = [f"{piece.label}.{number}" for number in range(width)]
            return [f"{piece.label}.plan", *members, f"{piece.label}.body"]
        case "chord":
            return [*(f"{piece.label}.{n}" for n in range(piece.width)), f"{piece.label}.body"]
        case "again" | "task" | "delayed" | "flaky":
            return [piece.label]
