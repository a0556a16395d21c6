"""The table of a tuning, and the settings that it would change."""

from __future__ import annotations

import json
from dataclasses import asdict

from agentq.ops.tune.climb import Comparison, Tuning
from agentq.ops.tune.verdict import Sample, spread

_FIGURES = {
    "throughput": "chains/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "switches": "switches",
}


def render(tuning: Tuning) -> str:
    """Return it for people: of each figure the median, and the range in brackets."""
    heads = "".join(f"{name:>24}" for name in _FIGURES.values())
    lines = [f"{'setting':<24}{'value':>8}{heads}  verdict"]
    for one in tuning.comparisons:
        lines.append(_line(one.key, one.reference, one.before, "reference"))
        lines.append(_line("", one.candidate, one.after, one.verdict))
    if tuning.untried:
        lines.append(f"no time was left for {', '.join(tuning.untried)}")
    lines += ["", *_changes(tuning)]
    return "\n".join(lines)


def _line(key: str, value: str, samples: tuple[Sample, ...], verdict: str) -> str:
    figures = "".join(f"{_figure(samples, name):>24}" for name in _FIGURES)
    return f"{key:<24}{value:>8}{figures}  {verdict}"


def _figure(samples: tuple[Sample, ...], name: str) -> str:
    seen = spread(samples, name)
    return f"{seen.middle:.1f} ({seen.least:.1f}-{seen.most:.1f})"


def _changes(tuning: Tuning) -> list[str]:
    if not tuning.changes:
        return ["no setting would be changed: what is set is as good as what was tried"]
    lines = ["nothing was changed; config/<env>.toml would be:"]
    for key, value in tuning.changes.items():
        section, _, name = key.rpartition(".")
        shown = value if value.isdecimal() else f'"{value}"'
        lines += [f"[{section}]", f"{name} = {shown}"]
    return lines


def as_json(tuning: Tuning) -> str:
    """Return the same for scripts, every sample in it."""
    comparisons = [_plain(one) for one in tuning.comparisons]
    body = {
        "comparisons": comparisons, "changes": tuning.changes, "untried": list(tuning.untried)
    }  # fmt: skip
    return json.dumps(body, indent=2)


def _plain(one: Comparison) -> dict[str, object]:
    return asdict(one)
