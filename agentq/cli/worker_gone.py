"""`agentq worker-gone`: what a supervisor runs once a worker process has ended."""

from __future__ import annotations

import os

import typer

_ENDED_BY_SUPERVISOR = ("success", "timeout")
"""What SERVICE_RESULT says of a process that was told to stop: it went, or its time was up."""


def worker_gone() -> None:
    """Hand back at once what a worker held that has died; for ExecStopPost= of its unit.

    Its lease is named by the file that it left in RUNTIME_DIRECTORY; one that ended in order left
    none. What it ran starts again elsewhere, as suspects, unless SERVICE_RESULT says that systemd
    stopped it; as suspects also where it left for want of memory and could not wait for them.
    """
    from agentq.host.supervisor import LeaseNote

    note = LeaseNote()
    if note.read() is None:
        return  # the usual end, at the cost of an interpreter's start
    from agentq.ops.lost_worker import found_dead
    from agentq.settings import load_settings
    from agentq.settings.sources import CREDENTIALS_VARIABLE
    from agentq.store.locate import broker_url
    from agentq.worker.load import NO_MEMORY

    # Its own credentials, if it were given any, are shut; the process left the one that is needed.
    settings = load_settings(environ={**os.environ, CREDENTIALS_VARIABLE: str(note.folder)})
    result = os.environ.get("SERVICE_RESULT", "")
    of_memory = os.environ.get("EXIT_STATUS") == str(NO_MEMORY)
    suspects = result not in _ENDED_BY_SUPERVISOR or of_memory
    said = found_dead(note, settings, url=broker_url(settings), suspects=suspects)
    typer.echo(f"{said} ({result})")
