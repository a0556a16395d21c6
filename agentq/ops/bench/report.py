"""Turns rows into the table that people read and the JSON that scripts read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from agentq.ops.bench import calibration
from agentq.ops.bench.rows import Better, Row
from agentq.ops.bench.systems import BASELINE, CANDIDATE
from agentq.ops.bench.targets import judge

_HEADS = ("test", "measure", "unit", "Celery prefork", "agentq", "agentq against it", "target")
_CALIBRATION = (calibration.WALL, calibration.CPU)
_LEFT_COLUMNS = 3  # the rest are figures and stand to the right


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table: the same measure on both systems, where both have it."""

    baseline: Row | None
    candidate: Row | None

    @property
    def row(self) -> Row:
        """Return the row that names the line."""
        found = self.candidate or self.baseline
        assert found is not None  # noqa: S101 - a comparison is made from a row
        return found

    @property
    def gain(self) -> float | None:
        """How many times better agentq is, whichever way is better; below 1 it is worse."""
        if self.row.better is Better.NEITHER or not (self.baseline and self.candidate):
            return None
        theirs, ours = self.baseline.value, self.candidate.value
        if not theirs or not ours:
            return None
        return ours / theirs if self.row.better is Better.HIGHER else theirs / ours


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """Pair the rows of both systems, in the order in which they were measured.

    A variant that only agentq has is paired with plain Celery's one way.
    """
    theirs = {(row.test, row.measure): row for row in rows if row.system == BASELINE}
    paired = {
        (row.test, row.measure, row.variant): Comparison(theirs.get((row.test, row.measure)), row)
        for row in rows
        if row.system == CANDIDATE
    }
    lines: dict[str, list[Comparison]] = {row.test: [] for row in rows}
    for comparison in paired.values():
        lines[comparison.row.test].append(comparison)
    for (test, measure), row in theirs.items():
        if (test, measure, "") not in paired:
            lines[test].append(Comparison(row, None))
    return [comparison for test in lines.values() for comparison in test]


def render(rows: Sequence[Row]) -> str:
    """Return the table, below it its notes and how busy the machine was."""
    lines = [_HEADS]
    notes: list[str] = []
    previous = ""
    for comparison in compare([row for row in rows if row.measure not in _CALIBRATION]):
        row = comparison.row
        lines.append(
            (
                row.test if row.test != previous else "",
                f"{row.measure} ({row.variant})" if row.variant else row.measure,
                row.unit,
                _cell(comparison.baseline, notes),
                _cell(comparison.candidate, notes),
                _gain(comparison),
                _target(comparison),
            )
        )
        previous = row.test
    legend = [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*_aligned(lines), *legend, *_machine(rows)]) + "\n"


def as_json(rows: Sequence[Row]) -> str:
    """Return a JSON list with one object a row: the fields of `Row`, with `gain` and `target`.

    `gain` (how many times better than plain Celery) and `target` ({limit, met}) stand on agentq's
    rows, null where there is none.
    """
    compared = {
        id(comparison.candidate): comparison for comparison in compare(rows) if comparison.candidate
    }
    documents = []
    for row in rows:
        comparison = compared.get(id(row))
        verdict = judge(row, comparison.baseline) if comparison else None
        documents.append(
            {
                **asdict(row),
                "gain": comparison.gain if comparison else None,
                "target": asdict(verdict) if verdict else None,
            }
        )
    return json.dumps(documents, indent=2)


def _machine(rows: Sequence[Row]) -> list[str]:
    """Say how long the fixed loop took beside the tests, and where it shows a busy machine."""
    spans = []
    for measure in _CALIBRATION:
        seen = [row.value for row in rows if row.measure == measure and row.value is not None]
        if seen:
            spans.append(f"{min(seen):.0f}-{max(seen):.0f} ms {measure.rpartition(' ')[2]}")
    busy = [row.note for row in rows if row.measure == calibration.WALL and row.note]
    return [f"fixed Python loop beside each test: {', '.join(spans)}", *busy] if spans else []


def _cell(row: Row | None, notes: list[str]) -> str:
    if row is None:
        return ""
    text = "failed" if row.value is None else _figure(row.value)
    if not row.note:
        return text
    if row.note not in notes:
        notes.append(row.note)
    return f"{text} [{notes.index(row.note) + 1}]"


def _gain(comparison: Comparison) -> str:
    if (gain := comparison.gain) is None:
        return ""
    worse = gain < 1
    return f"{_figure(1 / gain if worse else gain)}x {'worse' if worse else 'better'}"


def _target(comparison: Comparison) -> str:
    if comparison.candidate is None:
        return ""
    verdict = judge(comparison.candidate, comparison.baseline)
    if verdict is None:
        return ""
    sign = ">=" if comparison.row.better is Better.HIGHER else "<="
    return f"{sign} {_figure(verdict.limit)} {'met' if verdict.met else 'MISSED'}"


def _figure(value: float) -> str:
    """Return three significant digits, thousands apart, no exponent."""
    if value >= 100:  # noqa: PLR2004 - from here on no digit after the point is significant
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < _LEFT_COLUMNS else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
