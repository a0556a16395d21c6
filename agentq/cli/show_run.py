"""Prints a run's timeline and where its time went."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentq.cli.tables import plain_table, print_table
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
from agentq.runs.record import RunEvent, RunState, RunStatus

_WIDTH = 30
_ODD_SHOWN = 10
"""Failed attempts of a fan-out that are listed, beside the slowest."""


def print_run(console: Console, status: RunStatus, events: tuple[RunEvent, ...]) -> None:
    """Print the steps of a run, its shares of time and its batches."""
    attempts = attempts_of(events)
    if status.state in {RunState.CANCELLED, RunState.EXPIRED}:
        _print_cut(console, status, events, attempts)
    if not attempts:
        return
    console.print()
    print_table(console, _timeline(groups_of(attempts), _ms(status.submitted)))
    console.print()
    print_table(console, _shares(costs_of(attempts, **_span(status, attempts))))
    if (batches := batches_of(attempts)).items:
        console.print()
        console.print(_batches(batches), highlight=False)


def _print_cut(
    console: Console, status: RunStatus, events: tuple[RunEvent, ...], attempts: list[Attempt]
) -> None:
    """Print what there is of a run that ended before its steps did: those leave no entry."""
    console.print(f"  submitted {status.submitted:%Y-%m-%d %H:%M:%S} UTC")
    if status.deadline is not None:
        console.print(f"  deadline  {status.deadline:%Y-%m-%d %H:%M:%S} UTC")
    ended = {attempt.task for attempt in attempts}
    said = {
        event.data["task"]: event.data
        for event in events
        if event.kind == "progress" and event.data["task"] not in ended
    }
    for last in said.values():
        console.print(
            f"  {escape(last['step'])} had not ended; it last said: {escape(last['message'])}"
        )
    left = "the steps that had not ended are not in it" if attempts else "no step of it had ended"
    console.print(f"  {status.state.value} before its end: {left}")


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
    table = plain_table(
        "step", ">started", ">waited", ">ran", "where", prose="where", title="Timeline"
    )
    hosts = {_host(a.worker) for group in groups for a in group.attempts}
    for group in groups:
        rows = _wide_rows(group) if group.wide else _rows(group)
        for label, what in rows:
            first = what if isinstance(what, Attempt) else what.attempts[0]
            table.add_row(
                label,
                f"{seconds(first.start - began)}",
                _figure(what.waited),
                _figure(what.ran),
                _where(what, with_host=len(hosts) > 1, said=group.wide),
            )
    if any(group.wide for group in groups):
        table.caption, table.caption_justify = "a/b/c: least, median, most", "left"
    return table


def _rows(group: Group) -> list[tuple[str, Attempt | Group]]:
    return [(attempt.label, attempt) for attempt in group.attempts]


def _wide_rows(group: Group) -> list[tuple[str, Attempt | Group]]:
    slowest = group.slowest
    odd = [attempt for attempt in group.attempts if attempt.error and attempt not in slowest]
    more = len(odd) - _ODD_SHOWN
    also = f"  also, {more} more" if more > 0 else "  also"
    return [
        (f"{group.label} x {len(group.attempts)}", group),
        *(("  slowest" if place == 0 else "", attempt) for place, attempt in enumerate(slowest)),
        *((also if place == 0 else "", attempt) for place, attempt in enumerate(odd[:_ODD_SHOWN])),
    ]


def _where(what: Attempt | Group, *, with_host: bool, said: bool) -> str:
    if isinstance(what, Group):
        return ", ".join(sorted({_place(a, with_host=with_host) for a in what.attempts}))
    attempt = f", attempt {what.attempt}" if what.attempt > 1 else ""
    doing = f": {escape(what.said)}" if said and what.said else ""
    error = f" [red]{what.state}: {escape(what.error)}[/red]" if what.error else ""
    return f"{_place(what, with_host=with_host)}{attempt}{doing}{error}"


def _place(attempt: Attempt, *, with_host: bool) -> str:
    worker = attempt.worker if with_host else attempt.worker.partition("@")[0]
    return f"{worker} core {attempt.core}"


def _host(worker: str) -> str:
    return worker.partition("@")[2]


def _figure(figure: float | Spread) -> str:
    if not isinstance(figure, Spread):
        return seconds(figure)
    three = (figure.least, figure.middle, figure.most)
    if figure.most < 1000:  # noqa: PLR2004 -- a second
        return "/".join(f"{ms:.0f}" for ms in three) + " ms"
    return "/".join(f"{ms / 1000:.2f}" for ms in three) + " s"


def _shares(costs: dict[str, float]) -> Table:
    table = plain_table("", ">", ">", "", title="Where the time went, steps side by side added up")
    table.show_header = False
    for kind, share in shares_of(costs).items():
        bar = "█" * round(share / 100 * _WIDTH)
        table.add_row(kind, f"{share:.1f} %", seconds(costs[kind]), f"[cyan]{bar}[/cyan]")
    return table


def _batches(batches: Batches) -> str:
    return (
        f"Embedding calls: {batches.items} texts in {batches.batches:.0f} batches, "
        f"{batches.mean:.1f} a batch on average, {batches.largest} in the largest."
    )
