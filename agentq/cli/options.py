"""Options that several commands share, worded once."""

from __future__ import annotations

from typing import Annotated

import typer

App = Annotated[
    str | None,
    typer.Option(
        "-A",
        "--app",
        metavar="MODULE:NAME",
        help="Your AgentQ. Default: the setting [bold]app[/bold].",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, errors too.")]
Parent = Annotated[int, typer.Option("--parent", hidden=True)]
Announce = Annotated[int, typer.Option("--announce", hidden=True)]
