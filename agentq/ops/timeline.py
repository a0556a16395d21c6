"""What a run's events say: its steps, where its time went, how large its batches were. Pure.

Each attempt of a step is one second of the run's cost for each second it waited and ran, steps side
by side each on their own, so that the shares say what would have to become faster, not what the
clock on the wall saw. Of that cost,

    queue               was waited between being queued and being started (members of a fan-out
                        beyond its `at_once` are not queued yet)
    model               calls of chat and embedding models, waiting for a batch to fill included
    tools, context      what the steps attribute to them with ``ctx.spent(...)``
    state and messages  ``ctx.spent("state")``, and every moment at which no step of the run waited
                        or ran: submitting, and handing over from one step to the next
    failed attempts     attempts that failed for good or were tried again, with all they spent, the
                        pauses after them, and what model calls spent on their own retries
    lost with a worker  attempts that died with their process, until they were handed out again, and
                        the waits behind them
    own code            the rest of what ran

Calls side by side inside one step may add up to more than it ran; they are then scaled to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from agentq.runs.record import RunEvent

KINDS = (
    "queue", "model", "tools", "state and messages", "context", "failed attempts",
    "lost with a worker", "own code",
)  # fmt: skip

_OF_SPENDING = {"state": "state and messages", "retries": "failed attempts"}
_SHOWN_ONE_BY_ONE = 4
SLOWEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a step; times in milliseconds, `start` on the broker's clock."""

    step: str
    task: str
    state: str
    """``done``, ``failed``, ``retry``, or ``lost`` with its process."""
    attempt: int
    worker: str
    core: str
    start: int
    waited: float
    ran: float
    pause: float = 0.0
    """Before the next attempt, where there is one."""
    spent: dict[str, float] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)
    """Items by the size of the batch that answered them."""
    error: str = ""
    said: str = ""
    """What it last said with ``ctx.progress``."""

    @property
    def label(self) -> str:
        """The step's name without its module."""
        return self.step.rpartition(".")[2]

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Least, median and most of the same figure, in milliseconds."""

    least: float
    middle: float
    most: float

    @classmethod
    def of(cls, figures: Iterable[float]) -> Spread:
        """Return the spread of at least one figure."""
        held = list(figures)
        return cls(least=min(held), middle=median(held), most=max(held))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The attempts of one step, in order of their start; many of them for a fan-out."""

    label: str
    attempts: tuple[Attempt, ...]

    @property
    def wide(self) -> bool:
        """Whether there are too many to show one by one."""
        return len(self.attempts) > _SHOWN_ONE_BY_ONE

    @property
    def waited(self) -> Spread:
        """How long they waited."""
        return Spread.of(attempt.waited for attempt in self.attempts)

    @property
    def ran(self) -> Spread:
        """How long they ran."""
        return Spread.of(attempt.ran for attempt in self.attempts)

    @property
    def slowest(self) -> tuple[Attempt, ...]:
        """The longest running ones, longest first."""
        return tuple(sorted(self.attempts, key=lambda a: -a.ran)[:SLOWEST])


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """How model calls were grouped."""

    items: int
    batches: float
    """A batch shared with another run counts by its part."""
    largest: int

    @property
    def mean(self) -> float:
        """Items a batch."""
        return self.items / self.batches if self.batches else 0.0


def attempts_of(events: Iterable[RunEvent]) -> list[Attempt]:
    """Return the attempts in order of their start."""
    found = []
    said: dict[str, str] = {}
    for event in events:
        if event.kind == "progress":
            said[event.data["task"]] = event.data["message"]
        elif event.kind in {"step", "retry", "lost"}:
            found.append(_attempt(event.data, said.get(event.data["task"], "")))
    return sorted(found, key=lambda attempt: attempt.start)


def loss_of(data: dict[str, Any]) -> str:
    """Return in words what became of an attempt that a `lost` event tells of."""
    if data["charged"]:
        return f"its process died, {data['deaths']} of {data['limit']}"
    return "its worker died; not charged, it runs alone from now on"


def groups_of(attempts: Iterable[Attempt]) -> list[Group]:
    """Return the attempts by step, the steps in the order in which they first started."""
    held: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        held[attempt.step].append(attempt)
    return [Group(label=g[0].label, attempts=tuple(g)) for g in held.values()]


def costs_of(attempts: Iterable[Attempt], *, began: float, ended: float) -> dict[str, float]:
    """Return kind -> milliseconds, all of `KINDS`; the run lasted from *began* to *ended*."""
    held = list(attempts)
    costs = dict.fromkeys(KINDS, 0.0)
    tried = Counter(attempt.task for attempt in held if attempt.state == "retry")
    for attempt in held:
        for kind, ms in _cost(attempt, lost=attempt.attempt - 1 > tried[attempt.task]).items():
            costs[kind] += ms
    costs["state and messages"] += _uncovered(held, began, ended)
    return costs


def shares_of(costs: dict[str, float]) -> dict[str, float]:
    """Return kind -> per cent; they add up to 100, or are all 0 where nothing was spent."""
    total = sum(costs.values())
    return {kind: 100 * ms / total if total else 0.0 for kind, ms in costs.items()}


def batches_of(attempts: Iterable[Attempt]) -> Batches:
    """Return how large the batches were that answered the steps' calls."""
    sizes: Counter[int] = Counter()
    for attempt in attempts:
        sizes.update(attempt.batches)
    return Batches(
        items=sum(sizes.values()),
        batches=sum(items / size for size, items in sizes.items()),
        largest=max(sizes, default=0),
    )


def _attempt(data: dict[str, Any], said: str) -> Attempt:
    return Attempt(
        step=data["step"],
        task=data["task"],
        state=data["state"],
        attempt=data["attempt"],
        worker=data["worker"],
        core=data["core"],
        start=data["start"],
        waited=data["waited"],
        ran=data["ran"],
        pause=data.get("after", 0),
        spent=data.get("spent", {}),
        batches={int(size): items for size, items in data.get("batches", {}).items()},
        error=loss_of(data)
        if data["state"] == "lost"
        else ": ".join(filter(None, (data.get("error"), data.get("message")))),
        said=said,
    )


def _cost(attempt: Attempt, *, lost: bool) -> dict[str, float]:
    wait = "lost with a worker" if lost else "queue"
    if attempt.state != "done":
        kind = "lost with a worker" if attempt.state == "lost" else "failed attempts"
        costs = defaultdict(float, {wait: attempt.waited})
        costs[kind] += attempt.ran + attempt.pause
        return costs
    spent: defaultdict[str, float] = defaultdict(float)
    for kind, ms in attempt.spent.items():
        spent[_OF_SPENDING.get(kind, kind)] += ms
    total = sum(spent.values())
    fits = min(1.0, attempt.ran / total) if total else 1.0
    parts = {kind: ms * fits for kind, ms in spent.items()}
    own = attempt.ran - sum(parts.values())
    return {**parts, "own code": own, wait: parts.get(wait, 0.0) + attempt.waited}


def _uncovered(attempts: list[Attempt], began: float, ended: float) -> float:
    """Return how long, of the run's own time, no attempt waited, ran or paused."""
    spans = sorted((a.start - a.waited, a.end + a.pause) for a in attempts)
    merged: list[tuple[float, float]] = [(began, began)]
    for first, last in spans:
        if first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    merged.append((max(ended, merged[-1][1]), ended))
    return sum(max(0.0, after[0] - before[1]) for before, after in pairwise(merged))
