"""`agentq tune`: which settings make the chain faster on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentq.cli.options import Json, duration


def tune(
    file: Annotated[
        Path, typer.Option("--file", help="What has been measured: called again, it goes on.")
    ] = Path("agentq-tune.jsonl"),
    rounds: Annotated[
        int, typer.Option("--rounds", min=3, help="Trials of each of two values, in turn.")
    ] = 5,
    limit: Annotated[
        str, typer.Option("--limit", help="No new setting is begun after this.")
    ] = "30m",
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="SETTING", help="Leave this one out (repeatable)."),
    ] = None,
    chains: Annotated[int, typer.Option("--chains", min=20, help="Runs of one trial.")] = 150,
    server: Annotated[
        Path | None,
        typer.Option(help="valkey-server or redis-server; default: as `agentq up` finds it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Try slots, processes, batches, allocator and, as root, sysctls, beside what is set now.

    Measured is a chain of its own (plan, ten steps side by side with batched calls, review) on a
    private server. A value is better or worse only where its range stands clear of the other's;
    else there is no difference. It goes down as well as up, and changes nothing: it prints the
    settings that would be changed. Quiet the machine first. A sysctl is set for the time of its
    trial and put back; after a kill -9 the next start puts it back.

    Example: agentq tune --limit 15m
    """
    from agentq.cli.told_to_end import ending_in_order
    from agentq.ops.tune import as_json as tuning_as_json
    from agentq.ops.tune import render, tune_machine
    from agentq.settings import load_settings

    limited = duration(limit, "--limit")
    assert limited is not None  # noqa: S101 -- of a text
    found = None
    with ending_in_order():
        found = tune_machine(
            load_settings(),
            file=file,
            skip=skip or (),
            rounds=rounds,
            limit=limited,
            chains=chains,
            program=server,
            say=lambda line: typer.echo(line, err=True),
        )
    if found is None:
        typer.echo(f"ended by Ctrl-C; agentq tune --file {file} goes on", err=True)
        return
    typer.echo(tuning_as_json(found) if as_json else render(found))
