"""Says that a process is ready: to whoever started it through a pipe, else on the terminal.

To systemd as well, where that waits for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from agentq.host.supervisor import READY, tell


def announcer(descriptor: int) -> Callable[[str], None]:
    """Return what takes the one line; *descriptor* is the pipe's writing end, negative for none."""
    if descriptor < 0:
        return _announce_here
    # Its end of file then tells of this process' death, not of its children's.
    os.set_inheritable(descriptor, False)  # noqa: FBT003 -- positional only

    def announce(line: str) -> None:
        os.write(descriptor, line.encode() + b"\n")

    return announce


def _announce_here(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()  # a journal is no terminal
    tell(READY, f"STATUS={line}")
