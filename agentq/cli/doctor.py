"""`agentq doctor`: what is wrong with settings, machine, server, workers and queues."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from agentq.host.finding import Finding

_COLOURS: dict[Literal["error", "warning", "note"], str] = {
    "error": "red",
    "warning": "yellow",
    "note": "dim",
}
_UNWELL = 1


def doctor(app: App = None, as_json: Json = False) -> None:
    """Look at settings, machine, broker, workers and queues; change nothing.

    Each finding says what was seen, why it matters, and the command or line that mends it. A check
    that could not be made is a note. Exit code 0: nothing, or notes alone; 1: warnings or errors.

    Example: agentq doctor -A myproject.flows:aq --json | jq '.findings[] | .remedy'
    """
    from agentq.ops.doctor import diagnose, is_well

    findings = diagnose(app)
    counts = Counter(one.severity for one in findings)
    if as_json:
        import orjson

        body = {"well": is_well(findings), "findings": findings}
        typer.echo(orjson.dumps(body).decode())
    else:
        _print(findings)
        typer.echo(", ".join(_counted(counts[kind], kind) for kind in _COLOURS))
    raise typer.Exit(0 if is_well(findings) else _UNWELL)


def _print(findings: tuple[Finding, ...]) -> None:
    from rich.markup import escape

    from agentq.cli.tables import plain_console

    console = plain_console()
    for one in sorted(findings, key=lambda one: list(_COLOURS).index(one.severity)):
        colour = _COLOURS[one.severity]
        console.print(f"[{colour}]{one.severity}[/{colour}] {one.subject}: {escape(one.seen)}")
        console.print(f"  why: {escape(one.why)}")
        console.print(f"  remedy: {escape(one.remedy)}")


def _counted(count: int, kind: str) -> str:
    return f"{count} {kind}{'' if count == 1 else 's'}"
