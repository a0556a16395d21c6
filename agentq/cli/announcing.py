"""Says that a process is ready: to whoever started it through a pipe, else on the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable

import typer


def announcer(descriptor: int) -> Callable[[str], None]:
    """Return what takes the one line; *descriptor* is the pipe's writing end, negative for none."""
    if descriptor < 0:
        return typer.echo
    # Its end of file then tells of this process' death, not of its children's.
    os.set_inheritable(descriptor, False)  # noqa: FBT003 -- positional only

    def announce(line: str) -> None:
        os.write(descriptor, line.encode() + b"\n")

    return announce
