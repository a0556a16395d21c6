"""`agentq bench`: plain Celery prefork and agentq in one run, and how long functions hold Redis."""

from __future__ import annotations

from typing import Annotated

import typer

from agentq.cli.options import Json


def bench(
    tests: Annotated[
        list[str] | None,
        typer.Argument(
            help="enqueue, drain, latency, sleep, fanin, pipeline; default: all. Or functions."
        ),
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="celery or agentq (repeatable); default: both."),
    ] = None,
    scale: Annotated[
        float, typer.Option("--scale", help="Multiplies how much is measured; 0.01 tries it out.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Measure agentq beside plain Celery on this machine: figures, ratios, targets.

    Everything durable as designed, results stored, private servers of one program. Takes about four
    minutes; each figure stands beside how busy the machine was.

    `agentq bench functions` prints instead how long each of our functions holds the server at most:
    over 5 ms is marked, and fails.

    Example: agentq bench drain fanin --json > bench.json
    """
    if tests == ["functions"]:
        functions(as_json=as_json)
        return
    from agentq.ops.bench import as_json as rows_as_json
    from agentq.ops.bench import render, run_bench
    from agentq.ops.bench.systems import SYSTEMS

    rows = run_bench(
        tests or ["all"],
        systems=system or SYSTEMS,
        scale=scale,
        progress=lambda line: typer.echo(f"{line} ...", err=True),
    )
    typer.echo(rows_as_json(rows) if as_json else render(rows))
    if any(row.value is None for row in rows):
        raise typer.Exit(1)


def functions(*, as_json: bool) -> None:
    """Print how long each function holds the server; exit 1 where one is over the limit."""
    from agentq.ops.bench import functions_as_json, measure_functions, render_functions

    held = measure_functions()
    typer.echo(functions_as_json(held) if as_json else render_functions(held))
    if not all(one.within for one in held):
        raise typer.Exit(1)
