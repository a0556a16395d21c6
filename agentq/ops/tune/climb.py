"""Moves one parameter after the other, for as long as that makes the chain faster.

Each comparison is some rounds of two trials, the reference first and second in turn: what the
machine does beside it, it does to both. What came out better is compared with what is set once
again, before it counts: of so many comparisons one comes out so by chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from agentq.errors import AgentQError, BenchFailed
from agentq.ops.tune.parameters import DIRECTIONS, Direction, Parameter
from agentq.ops.tune.record import Record
from agentq.ops.tune.verdict import Sample, Verdict, judge
from agentq.settings import Settings

Run = Callable[[Parameter, str], Sample]
"""A trial of a value."""

Say = Callable[[str], None]

MOST_STEPS = 4
"""In one direction: it ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One value beside another."""

    key: str
    reference: str
    candidate: str
    again: bool
    """Whether it had come out better before."""
    before: tuple[Sample, ...]
    after: tuple[Sample, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What was tried, and what would be changed."""

    comparisons: tuple[Comparison, ...]
    changes: dict[str, str]
    """Setting -> value that was better than what is set."""
    sysctls: dict[str, str]
    """The same of the kernel's."""
    untried: tuple[str, ...]
    """Settings for which no time was left."""
    notes: tuple[str, ...] = ()
    """What was left out, and why; what the figures can not show."""


def tune(  # noqa: PLR0913 -- its parts
    *,
    parameters: Sequence[Parameter],
    settings: Settings,
    run: Run,
    record: Record,
    rounds: int,
    limit: timedelta,
    say: Say = lambda _: None,
) -> Tuning:
    """Compare until nothing helps any more, or *limit* is over; a comparison begun is ended.

    Raises:
        AgentQError: a trial failed: what has ended is in *record*, and the next call goes on there.
    """
    climb = _Climb(run=run, record=record, rounds=rounds, say=say)
    until = time.monotonic() + limit.total_seconds()
    changes: dict[str, str] = {}
    sysctls: dict[str, str] = {}
    untried = []
    for parameter in parameters:
        if time.monotonic() > until:
            untried.append(parameter.key)
            continue
        now = parameter.read(settings)
        best = climb.best(parameter, now)
        if best != now:
            (sysctls if parameter.hold else changes)[parameter.key] = best
    return Tuning(
        comparisons=tuple(climb.made), changes=changes, sysctls=sysctls, untried=tuple(untried)
    )  # fmt: skip


class _Climb:
    """Compares, and remembers what it has compared."""

    def __init__(self, *, run: Run, record: Record, rounds: int, say: Say) -> None:
        self._run = run
        self._record = record
        self._rounds = rounds
        self._say = say
        self.made: list[Comparison] = []

    def best(self, parameter: Parameter, now: str) -> str:
        """Return the best value of a parameter, *now* where none is better."""
        for direction in DIRECTIONS:
            found = self._along(parameter, now, direction)
            if found != now and self._compare(parameter, now, found, again=True) == Verdict.BETTER:
                return found  # what helps in one direction does not in the other
        return now

    def _along(self, parameter: Parameter, now: str, direction: Direction) -> str:
        best = now
        for _ in range(MOST_STEPS):
            candidate = parameter.neighbour(best, direction)
            if candidate is None or self._compare(parameter, best, candidate) != Verdict.BETTER:
                break
            best = candidate
        return best

    def _compare(
        self, parameter: Parameter, reference: str, candidate: str, *, again: bool = False
    ) -> Verdict:
        before: list[Sample] = []
        after: list[Sample] = []
        what = f"{parameter.key}: {candidate} beside {reference}{', again' if again else ''}"
        for number in range(self._rounds):
            self._say(f"{what}: {number + 1} of {self._rounds}")
            pair = [(reference, before), (candidate, after)]
            for value, samples in pair if number % 2 == 0 else reversed(pair):
                samples.append(self._sample(f"{what}, {number}: {value}", parameter, value))
        verdict = judge(before, after)
        self._say(f"{what}: {verdict}")
        self.made.append(
            Comparison(
                key=parameter.key, reference=reference, candidate=candidate, again=again,
                before=tuple(before), after=tuple(after), verdict=verdict,
            )
        )  # fmt: skip
        return verdict

    def _sample(self, trial: str, parameter: Parameter, value: str) -> Sample:
        found = self._record.find(trial)
        if found is None:
            try:
                found = self._run(parameter, value)
            except AgentQError as error:
                raise BenchFailed(
                    f"{parameter.key} = {value}: {error}\nagentq tune goes on with it when "
                    f"it is called again; without it: --skip {parameter.key}"
                ) from error
            self._record.keep(trial, found)
        return found
