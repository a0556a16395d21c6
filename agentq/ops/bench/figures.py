"""Figures that stand for themselves, each beside the limit it is held to where it has one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value.

    Attributes:
        name: what was measured.
        value: how much.
        unit: of both.
        limit: what it must not exceed; None: it is told, and held to nothing.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def within(self) -> bool:
        """Whether it keeps to its limit."""
        return self.limit is None or self.value <= self.limit


def render_figures(figures: Sequence[Figure]) -> str:
    """Return the table; what is over its limit is marked."""
    lines = [f"{'figure':<58}{'value':>12} {'unit':<12}{'limit':>10}"]
    for one in figures:
        limit = "" if one.limit is None else f"{one.limit:,.2f}"
        over = "" if one.within else "  over"
        lines.append(f"{one.name:<58}{one.value:>12,.2f} {one.unit:<12}{limit:>10}{over}".rstrip())
    return "\n".join(lines)


def figures_as_json(figures: Sequence[Figure]) -> str:
    """Return the same for scripts."""
    return json.dumps([{**asdict(one), "within": one.within} for one in figures], indent=2)
