"""The command line: puts the commands together and turns errors into one clear line.

Exit codes: 0 done, 1 an error of agentq's (see `agentq.errors`), 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from agentq import __version__
from agentq.cli import (
    bench,
    broker,
    cancel,
    dashboard,
    dead,
    demo,
    deploy,
    doctor,
    events,
    metrics,
    migrate,
    pause,
    plan,
    pools,
    purge,
    rollout,
    scale,
    settings,
    status,
    submit,
    tune,
    up,
    why,
    worker,
    worker_gone,
)
from agentq.cli.failure import report, report_usage
from agentq.errors import AgentQError


def _version(asked: bool) -> None:  # noqa: FBT001 -- the option
    if asked:
        typer.echo(f"agentq {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="agentq",
    help="Multi-agent runs on Celery and Redis or Valkey.\n\n"
    "Begin with [bold]agentq demo[/bold]; then [bold]agentq up -A yourproject:aq[/bold].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print it and end.")
    ] = False,
) -> None:
    """Take the options that stand before a command; the help is the app's."""


for module in (
    demo,
    migrate,
    up,
    worker,
    submit,
    status,
    events,
    why,
    doctor,
    cancel,
    pause,
    plan,
    purge,
    dashboard,
    metrics,
    scale,
    rollout,
    pools,
    settings,
    bench,
    tune,
):
    name = module.__name__.rpartition(".")[2]
    app.command(name)(getattr(module, name))
app.command("resume")(pause.resume)
app.command("worker-gone", hidden=True)(worker_gone.worker_gone)
app.add_typer(dead.dead)
app.add_typer(broker.broker)
app.add_typer(deploy.deploy)


_INTERRUPTED = 130
_Usage: Any = typer.BadParameter.__mro__[1]
"""What typer raises for wrong usage: click's in older releases, its own copy in newer ones."""


def main() -> None:
    """Run the command that the arguments name."""
    as_json = "--json" in sys.argv
    try:
        # Typer prints wrong usage by itself, in colours and with a hint, unless a script asks.
        sys.exit(app(prog_name="agentq", standalone_mode=not as_json))
    except AgentQError as error:
        sys.exit(report(error, as_json=as_json))
    except _Usage as error:
        sys.exit(report_usage(error.format_message()))
    except typer.Abort:
        sys.exit(_INTERRUPTED)
