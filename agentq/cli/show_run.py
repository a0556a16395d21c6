"""Prints a run's timeline and where its time went."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.table import Table

from agentq.ops.timeline import (
    Attempt,
    Batches,
    Group,
    Spread,
    attempts_of,
    batches_of,
    costs_of,
    groups_of,
    shares_of,
)
from agentq.runs.record import RunEvent, RunStatus

_WIDTH = 30


def print_run(console: Console, status: RunStatus, events: tuple[RunEvent, ...]) -> None:
    """Print the steps of a run, its shares of time and its batches."""
    attempts = attempts_of(events)
    if not attempts:
        return
    console.print(_timeline(groups_of(attempts), _ms(status.submitted)))
    console.print(_shares(costs_of(attempts, **_span(status, attempts))))
    if (batches := batches_of(attempts)).items:
        console.print(_batches(batches))


def run_as_json(status: RunStatus, events: tuple[RunEvent, ...]) -> dict[str, object]:
    """Return the same as JSON values; times in milliseconds, shares in per cent."""
    attempts = attempts_of(events)
    batches = batches_of(attempts)
    costs = costs_of(attempts, **_span(status, attempts))
    return {
        "run": status.id,
        "flow": status.flow,
        "state": status.state.value,
        "submitted": status.submitted.isoformat(),
        "ended": status.ended.isoformat() if status.ended else None,
        "steps": [
            {
                "step": a.step, "state": a.state, "attempt": a.attempt, "worker": a.worker,
                "core": a.core, "start": a.start, "waited": a.waited, "ran": a.ran,
                "spent": a.spent, "error": a.error or None,
            }
            for a in attempts
        ],
        "shares": {kind: round(share, 2) for kind, share in shares_of(costs).items()},
        "batches": {
            "items": batches.items, "batches": round(batches.batches, 2),
            "mean": round(batches.mean, 2), "largest": batches.largest,
        },
    }  # fmt: skip


def seconds(ms: float) -> str:
    """Return e.g. ``3 ms``, ``1.24 s``, ``2 min 5 s``."""
    if ms < 1000:  # noqa: PLR2004 -- a second
        return f"{ms:.0f} ms"
    if ms < 60_000:  # noqa: PLR2004 -- a minute
        return f"{ms / 1000:.2f} s"
    return f"{ms // 60_000:.0f} min {ms % 60_000 / 1000:.0f} s"


def _ms(instant: datetime) -> float:
    return instant.timestamp() * 1000


def _span(status: RunStatus, attempts: list[Attempt]) -> dict[str, float]:
    began = _ms(status.submitted)
    last = max((attempt.end for attempt in attempts), default=began)
    return {"began": began, "ended": _ms(status.ended) if status.ended else last}


def _timeline(groups: list[Group], began: float) -> Table:
    table = Table(title="Timeline", title_justify="left", box=None, header_style="bold")
    for name, justify in (("step", "left"), ("at", "right"), ("waited", "right"), ("ran", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("where")
    for group in groups:
        for row in _wide_rows(group, began) if group.wide else _rows(group.attempts, began):
            table.add_row(*row)
    return table


def _rows(attempts: tuple[Attempt, ...], began: float, indent: str = "") -> list[tuple[str, ...]]:
    return [
        (
            f"{indent}{a.label}" + (f" (attempt {a.attempt})" if a.attempt > 1 else ""),
            f"+{seconds(a.start - began)}",
            seconds(a.waited),
            seconds(a.ran),
            f"{a.worker}, core {a.core}" + (f" [red]{a.state}: {a.error}[/red]" if a.error else ""),
        )
        for a in attempts
    ]


def _wide_rows(group: Group, began: float) -> list[tuple[str, ...]]:
    first = group.attempts[0]
    places = sorted({f"{a.worker}, core {a.core}" for a in group.attempts})
    odd = tuple(a for a in group.attempts if a.error and a not in group.slowest)
    return [
        (
            f"{group.label} x {len(group.attempts)}",
            f"+{seconds(first.start - began)}",
            _spread(group.waited),
            _spread(group.ran),
            "; ".join(places) + " (least / median / most)",
        ),
        *_rows(group.slowest, began, indent="  slowest: "),
        *_rows(odd, began, indent="  "),
    ]


def _spread(spread: Spread) -> str:
    return " / ".join(seconds(ms) for ms in (spread.least, spread.middle, spread.most))


def _shares(costs: dict[str, float]) -> Table:
    table = Table(
        title="Where the time went (all steps' waiting and running added up)",
        title_justify="left", box=None, show_header=False,
    )  # fmt: skip
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for kind, share in shares_of(costs).items():
        bar = "█" * round(share / 100 * _WIDTH)
        table.add_row(kind, f"{share:.1f} %", seconds(costs[kind]), f"[cyan]{bar}[/cyan]")
    return table


def _batches(batches: Batches) -> str:
    return (
        f"Embedding calls: {batches.items} texts in {batches.batches:.0f} batches, "
        f"{batches.mean:.1f} a batch on average, {batches.largest} in the largest."
    )
