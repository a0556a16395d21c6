"""`agentq demo`: the worked example on a whole installation of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Console

    from agentq.ops.demo import Outcome
    from agentq.ops.up import Up
    from agentq.runs.record import RunEvent


def demo(
    question: Annotated[
        str | None, typer.Argument(help="What to find out. Default: about installed packages.")
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(
            "--docs",
            metavar="DIR",
            help="A folder of text files. Default: the READMEs of the installed Python packages.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End by itself after the report.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="Also Flower.")
    ] = True,
    port: Annotated[
        int | None,
        typer.Option("--port", help="Flower's. Default: dashboard.port, or a free one instead."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget the notes of earlier runs: read all again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Answer a question over real documents with real models: plan, read in parallel, review.

    Starts a broker, one worker each for the pools critical and shared, a local model server (unless
    model.base_url is set) and Flower, in a temporary folder; all of it is gone at the end. Notes
    are kept in your state folder: a second run reuses those whose documents have not changed.

    Example: agentq demo --docs ~/notes "what did we decide about backups?"
    """
    from rich.console import Console

    from agentq.cli.told_to_end import ending_in_order
    from agentq.ops.demo import Question, ask, installation

    console = Console(stderr=as_json, highlight=False)
    asked = Question(text=question, docs=docs, fresh=fresh)

    def say(line: str) -> None:
        console.print(line, style="dim", markup=False, soft_wrap=True)

    with ending_in_order():  # noqa: SIM117 -- two, so that the order of their ends shows
        with installation(asked, say=say, dashboard=dashboard, port=port) as up:
            outcome = _with_progress(console, lambda seen: ask(asked, up=up, on_event=seen))
            if as_json:
                _print_json(outcome)
            else:
                _print(console, outcome)
            for line in up.missing:
                console.print(f"Missing: {line}", style="yellow", markup=False)
            if not once:
                _stay(console, up)


def _stay(console: Console, up: Up) -> None:
    console.print()
    if up.dashboard_address:
        console.print(f"Flower: {up.dashboard_address}")
    here = " ".join(f"{name}={value}" for name, value in up.environment.items() if "URL" in name)
    console.print(f"From another terminal: {here} agentq status", soft_wrap=True)
    console.print("Everything stays up until Ctrl-C.")
    while True:
        up.round(1.0)


def _with_progress(
    console: Console, run: Callable[[Callable[[RunEvent], None]], Outcome]
) -> Outcome:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    what = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), what)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("listing the documents", total=None)
        ended = 0

        def seen(event: RunEvent) -> None:
            nonlocal ended
            if event.kind == "progress":
                bar.update(task, description=event.data["message"])
            elif event.kind == "fanout":
                bar.update(task, total=ended + event.data["width"] + 2)  # review, remember
            elif event.kind == "step":
                ended += 1
                bar.update(task, completed=ended)

        return run(seen)


def _print(console: Console, outcome: Outcome) -> None:
    from rich.markdown import Markdown

    from agentq.cli.show_run import print_run

    console.print(Markdown(outcome.markdown))
    print_run(console, outcome.status, outcome.events)
    report = outcome.report
    console.print(f"Notes: {report.reused} of {report.read} reused from an earlier run.")


def _print_json(outcome: Outcome) -> None:
    import orjson

    from agentq.cli.show_run import run_as_json

    body = {
        "report": outcome.report.model_dump(mode="json"),
        **run_as_json(outcome.status, outcome.events),
    }
    typer.echo(orjson.dumps(body).decode())
