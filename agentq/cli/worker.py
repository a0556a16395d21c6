"""`agentq worker`: this process becomes a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentq.cli.options import Announce, App, Parent


def worker(
    pool: Annotated[
        str, typer.Option("--pool", metavar="NAME[,NAME]", help="The pools it works for.")
    ],
    app: App = None,
    slots: Annotated[
        int | None, typer.Option("--slots", min=1, help="Steps at once. Default: the pool's.")
    ] = None,
    index: Annotated[
        int, typer.Option("--index", min=0, help="Which of the pool's processes: name and core.")
    ] = 0,
    cores: Annotated[
        str | None,
        typer.Option("--cores", metavar="LIST", help="Cores, as 0-3,8. Default: placed for you."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Default: POOL-INDEX@HOST.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Its seat stands there: agentq plan --json."),
    ] = None,
    parent: Parent = 0,
    announce: Announce = -1,
) -> None:
    """Run one worker process; end it with Ctrl-C or SIGTERM.

    It pins itself to its core, starts itself again under jemalloc where the pool's settings want
    that, raises its limit of open files, and says what it got. [bold]celery -A MODULE worker[/bold]
    starts the same worker without these.

    Running steps may end within worker.drain_timeout; the rest is handed back, uncharged. A second
    signal hands back at once.

    Example: agentq worker --pool shared --index 1 -A myproject.flows:aq
    """
    from agentq.cli.announcing import announcer
    from agentq.host.parent import end_with_parent
    from agentq.host.topology import parse_cores
    from agentq.ops.application import load_app
    from agentq.ops.worker_process import WorkerOptions, become_worker

    if parent:
        end_with_parent(parent)
    try:
        chosen = parse_cores(cores) if cores is not None else None
    except ValueError as error:
        raise typer.BadParameter(f"{cores!r} is no list of cores; write 0-3,8") from error
    options = WorkerOptions(
        pools=tuple(part.strip() for part in pool.split(",") if part.strip()),
        index=index,
        cores=chosen,
        slots=slots,
        name=name,
        plan=plan,
    )
    raise typer.Exit(become_worker(load_app(app), options, announce=announcer(announce)))
