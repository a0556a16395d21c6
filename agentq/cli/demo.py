"""`agentq demo`: the worked example on a whole installation of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Console

    from agentq.ops.demo import Outcome


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
    as_json: Json = False,
) -> None:
    """Answer a question over real documents with real models: plan, read in parallel, review.

    Starts a broker, one worker each for the pools critical and shared, a local model server (unless
    model.base_url is set) and Flower, in a temporary folder; all of it is gone at the end. Notes
    are kept in your state folder: a second run reuses those whose documents have not changed.

    Example: agentq demo --docs ~/notes "what did we decide about backups?"
    """
    from rich.console import Console  # noqa: PLC0415

    from agentq.cli.told_to_end import ending_in_order  # noqa: PLC0415
    from agentq.ops.demo import Question, ask, installation  # noqa: PLC0415

    console = Console(stderr=as_json)
    asked = Question(text=question, docs=docs)
    with ending_in_order(), installation(say=_said(console), dashboard=dashboard) as up:
        outcome = _with_progress(console, lambda seen: ask(asked, up=up, on_event=seen))
        if as_json:
            _print_json(outcome)
        else:
            _print(console, outcome)
        for line in up.missing:
            console.print(f"[yellow]Missing:[/yellow] {line}", highlight=False)
        if not once:
            console.print("Everything stays up until Ctrl-C.")
            while True:
                up.round(1.0)
    if once:
        console.print("Ended; nothing is left running.")


def _said(console):  # type: ignore[no-untyped-def]
    return lambda line: console.print(
        line, style="dim", highlight=False, markup=False, soft_wrap=True
    )


def _with_progress(console, run):  # type: ignore[no-untyped-def]
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("plan", total=None)
        steps = 0

        def seen(event):  # type: ignore[no-untyped-def]
            nonlocal steps
            data = event.data
            if event.kind == "progress":
                bar.update(task, description=data["message"])
            elif event.kind == "fanout":
                bar.update(task, total=data["width"] + 3, description="reading documents")
            elif event.kind == "step":
                steps += 1
                bar.update(task, completed=steps)

        return run(seen)


def _print(console: Console, outcome: Outcome) -> None:
    from rich.markdown import Markdown  # noqa: PLC0415

    from agentq.cli.show_run import print_run  # noqa: PLC0415

    console.print(Markdown(outcome.markdown))
    console.print()
    print_run(console, outcome.status, outcome.events)
    report = outcome.report
    console.print(f"Notes: {report.reused} of {report.read} reused from an earlier run.")


def _print_json(outcome: Outcome) -> None:
    import orjson  # noqa: PLC0415

    from agentq.cli.show_run import run_as_json  # noqa: PLC0415

    body = {
        "report": outcome.report.model_dump(mode="json"),
        **run_as_json(outcome.status, outcome.events),
    }
    typer.echo(orjson.dumps(body).decode())
