"""The table of a tuning, and the settings that it would change; 80 columns wide."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from textwrap import fill

from agentq.ops.tune.climb import Comparison, Tuning
from agentq.ops.tune.verdict import Sample, spread

_FIGURES = {
    "throughput": "chains/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "switches": "switches",
}
_COLUMNS = 80
_ROUND = 100
"""From here on a figure is shown without its tenths."""


def render(tuning: Tuning) -> str:
    """Return it for people: of each figure the median, and the range in brackets."""
    lines = [line for one in tuning.comparisons for line in _compared(one)]
    if tuning.comparisons:
        rounds = len(tuning.comparisons[0].before)
        lines.insert(0, f"{rounds} trials of each value, in turn: median (least-most)\n")
    notes = list(tuning.notes)
    if tuning.untried:
        notes.insert(0, f"no time was left for {', '.join(tuning.untried)}")
    wrapped = [fill(note, _COLUMNS, subsequent_indent="  ") for note in notes]
    return "\n".join([*lines, *wrapped, "", *_changes(tuning)])


def _compared(one: Comparison) -> Iterator[str]:
    again = ", again" if one.again else ""
    yield f"{one.key}: {one.candidate} beside {one.reference}{again}: {one.verdict}"
    yield " " * 11 + "".join(f"{name:>17}" for name in _FIGURES.values())
    yield _line(one.reference, one.before)
    yield _line(one.candidate, one.after)
    yield ""


def _line(value: str, samples: tuple[Sample, ...]) -> str:
    return f"  {value:<9}" + "".join(f"{_figure(samples, name):>17}" for name in _FIGURES)


def _figure(samples: tuple[Sample, ...], name: str) -> str:
    seen = spread(samples, name)
    return f"{_short(seen.middle)} ({_short(seen.least)}-{_short(seen.most)})"


def _short(figure: float) -> str:
    return f"{figure:.0f}" if figure >= _ROUND else f"{figure:.1f}"


def _changes(tuning: Tuning) -> Iterator[str]:
    if not tuning.changes and not tuning.sysctls:
        yield (
            "no setting would be changed: what is set is as good as what was tried"
            if tuning.comparisons
            else "no setting would be changed: none was tried"
        )
        return
    yield "nothing was changed; it would be"
    if tuning.changes:
        yield "in config/<env>.toml:"
        yield from _tables(tuning.changes)
    if tuning.sysctls:
        yield "in /etc/sysctl.d/:"
        yield from (f"{name} = {value}" for name, value in tuning.sysctls.items())


def _tables(changes: Mapping[str, str]) -> Iterator[str]:
    """Settings of one section follow each other under one head: TOML refuses a second."""
    heads = dict.fromkeys(key.rpartition(".")[0] for key in changes)
    for head in heads:
        yield f"[{head}]"
        for key, value in changes.items():
            section, _, name = key.rpartition(".")
            if section == head:
                yield f"{name} = " + (value if value.isdecimal() else f'"{value}"')


def as_json(tuning: Tuning) -> str:
    """Return the same for scripts, every sample in it."""
    return json.dumps(asdict(tuning), indent=2)
