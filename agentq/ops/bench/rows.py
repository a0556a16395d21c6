"""One measured figure, and the one place where a figure's unit and direction are written down."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Test(StrEnum):
    """What `agentq bench` can measure, in the order in which `all` runs it."""

    __test__ = False  # pytest must not take it for a test class

    ENQUEUE = "enqueue"
    DRAIN = "drain"
    LATENCY = "latency"
    SLEEP = "sleep"
    FANIN = "fanin"
    PIPELINE = "pipeline"


ALONE = (
    "functions", "herd", "delayed", "reconnect", "shares", "memory", "coldstart", "isolation",
    "slots",
)  # fmt: skip
"""What is measured of agentq alone, one at a time, each with limits of its own."""


class Better(StrEnum):
    """Which way is an improvement; NEITHER marks figures that are only there to be read."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one test on one system.

    Attributes:
        test: one of `Test`.
        system: ``celery`` or ``agentq``.
        measure: what the figure is, e.g. ``worker CPU``; same words for every system.
        unit: its unit, e.g. ``us/step``.
        value: the figure, None if the test failed (then `note` says why).
        n: how many executions were measured.
        better: which way is an improvement.
        variant: another way to do the same on this system, e.g. ``@app.task``; empty for the
            headline.
        note: what must be known to read the figure, e.g. that it was extrapolated.
    """

    test: str
    system: str
    measure: str
    unit: str
    value: float | None
    n: int
    better: Better = Better.LOWER
    variant: str = ""
    note: str = ""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Row:
        """Return the row that a producing process printed."""
        return cls(**{**fields, "better": Better(fields["better"])})

    @classmethod
    def figure(cls, test: str, system: str, measure: str, unit: str, value: float, n: int) -> Row:
        """Return a comparable row; its unit tells which way is better."""
        better = Better.HIGHER if unit.endswith("/s") else Better.LOWER
        return cls(test, system, measure, unit, value, n, better)
