"""`agentq worker`: this process becomes a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentq.cli.options import Announce, App, Parent


def worker(
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME[,NAME]", help="The pools it works for.")
    ] = None,
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
    instance: Annotated[
        str | None,
        typer.Option("--instance", metavar="POOL-INDEX", help="Both in one, as units are named."),
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
    from agentq.ops.application import load_app
    from agentq.ops.worker_process import WorkerOptions, become_worker

    if parent:
        end_with_parent(parent)
    pools, index = _process(pool, index, instance)
    options = WorkerOptions(
        pools=pools,
        index=index,
        cores=_cores(cores),
        slots=slots,
        name=name,
        plan=plan,
    )
    raise typer.Exit(become_worker(load_app(app), options, announce=announcer(announce)))


def _process(pool: str | None, index: int, instance: str | None) -> tuple[tuple[str, ...], int]:
    if (pool is None) == (instance is None):
        raise typer.BadParameter("name the pools with --pool, or one process with --instance")
    if instance is not None:
        pool, _, number = instance.rpartition("-")
        if not pool or not number.isdecimal():
            raise typer.BadParameter(f"{instance!r} is no process; write POOL-INDEX, as shared-3")
        index = int(number)
    return tuple(part.strip() for part in str(pool).split(",") if part.strip()), index


def _cores(text: str | None) -> tuple[int, ...] | None:
    from agentq.host.topology import parse_cores

    try:
        return parse_cores(text) if text is not None else None
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of cores; write 0-3,8") from error
