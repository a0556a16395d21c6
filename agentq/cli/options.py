"""Options that several commands share, worded once."""

from __future__ import annotations

from datetime import timedelta
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


LAST_PORT = 65_535

_SIZES = {"K": 2**10, "M": 2**20, "G": 2**30}


def size(text: str | None, option: str) -> int | None:
    """Return the bytes that *text* (``256M``) says, None for None; as `duration`."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or (unit and unit not in _SIZES):
        raise typer.BadParameter(f"{text!r} is no size: write 256M or 2G", param_hint=option)
    if not unit and int(number) < _SIZES["M"]:
        raise typer.BadParameter(f"{text} is bytes: write {text}M", param_hint=option)
    return int(number) * _SIZES.get(unit, 1)


def duration(text: str | None, option: str) -> timedelta | None:
    """Return what *text* says, None for None; wrong usage of *option* where it says nothing."""
    from agentq.clock import parse_duration

    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
