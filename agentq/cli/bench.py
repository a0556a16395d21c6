"""`agentq bench`: plain Celery prefork and agentq in one run, and how long functions hold Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentq.cli.options import Json


def bench(
    tests: Annotated[
        list[str] | None,
        typer.Argument(
            help="enqueue, drain, latency, sleep, fanin, pipeline; default: all. "
            "Or one of functions, herd, delayed, reconnect, shares, memory, coldstart, isolation, "
            "slots."
        ),
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="celery or agentq (repeatable); default: both."),
    ] = None,
    scale: Annotated[
        float, typer.Option("--scale", help="Multiplies how much is measured; 0.01 tries it out.")
    ] = 1.0,
    server: Annotated[
        Path | None,
        typer.Option(help="valkey-server or redis-server; default: as `agentq up` finds it."),
    ] = None,
    payload: Annotated[
        int, typer.Option(help="Bytes of the large messages that `functions` measures with.")
    ] = 200_000,
    as_json: Json = False,
) -> None:
    """Measure agentq beside plain Celery on this machine: figures, ratios, targets.

    Everything durable as designed, results stored, private servers of one program. Takes about four
    minutes; each figure stands beside how busy the machine was.

    `agentq bench functions` prints instead how long each of our functions holds the server at most,
    with small messages and with large ones: over 5 ms is marked, and fails. `agentq bench herd`:
    what idle workers cost each message; `delayed`: what 100,000 delayed tasks cost a worker, and
    how late they come; `reconnect`: when a fleet is back that lost its broker; `memory`: what a
    worker keeps of a burst, under jemalloc beside glibc, and after 100,000 runs; `coldstart`: how
    much later a new worker's first step ends, with aq.warm and without; `isolation`: how long a
    critical step waits while shared work floods the cell, and what pinning and jemalloc bring to
    that; `slots`: fixed slots beside adaptive ones. Each figure with its limit; one that is over
    it fails.
    `shares`: what a step, a run and a model call cost, which `agentq plan --runs` counts with.

    Example: agentq bench drain fanin --json > bench.json
    """
    from agentq.ops.bench.rows import ALONE

    if tests == ["functions"]:
        functions(server=server, payload=payload, as_json=as_json)
        return
    if tests and len(tests) == 1 and tests[0] in ALONE:
        figures(tests[0], server=server, as_json=as_json)
        return
    from agentq.ops.bench import as_json as rows_as_json
    from agentq.ops.bench import render, run_bench
    from agentq.ops.bench.systems import SYSTEMS

    rows = run_bench(
        tests or ["all"],
        systems=system or SYSTEMS,
        scale=scale,
        server=server,
        progress=lambda line: typer.echo(f"{line} ...", err=True),
    )
    typer.echo(rows_as_json(rows) if as_json else render(rows))
    if any(row.value is None for row in rows):
        raise typer.Exit(1)


def figures(name: str, *, server: Path | None, as_json: bool) -> None:
    """Print what one of our own benches measured; exit 1 where a figure is over its limit."""
    from agentq.ops import bench as benches

    found = getattr(benches, f"measure_{name}")(server=server)
    typer.echo(benches.figures_as_json(found) if as_json else benches.render_figures(found))
    if not all(one.within for one in found):
        raise typer.Exit(1)


def functions(*, server: Path | None, payload: int, as_json: bool) -> None:
    """Print how long each function holds the server; exit 1 where one is over the limit."""
    from agentq.ops.bench import functions_as_json, measure_functions, render_functions

    held = measure_functions(server=server, payload=payload)
    typer.echo(functions_as_json(held) if as_json else render_functions(held))
    if not all(one.within for one in held):
        raise typer.Exit(1)
