"""`agentq up`: everything of one machine."""

from __future__ import annotations

from typing import Annotated

import typer

from agentq.cli.options import LAST_PORT, App, size


def up(
    app: App = None,
    pool: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="NAME", help="Only this pool (repeatable). Default: all."),
    ] = None,
    models: Annotated[
        bool, typer.Option("--models", help="Also the local model server, as the demo has it.")
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="Also Flower.")
    ] = True,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=LAST_PORT,
            help="Flower's. Default: dashboard.port; 0 takes any free one.",
        ),
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option("--cpus", help="Imitate a machine of so much of a core, such as 0.5."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="And of so much memory, such as 256M."),
    ] = None,
) -> None:
    """Start the embedded broker, a worker for each pool's process, and Flower; Ctrl-C ends all.

    Where broker.url is set, that broker is used and none is started. A worker that dies is started
    again.

    With --cpus and --memory all of it together gets no more than that, as on a small production
    machine; what can not be imitated is said. It needs no rights.

    Example: agentq up -A myproject.flows:aq --models
    """
    from agentq.cli.told_to_end import ending_in_order
    from agentq.errors import SettingsError
    from agentq.ops.application import load_app
    from agentq.ops.imitation import Small
    from agentq.ops.up import Parts, Up
    from agentq.settings import load_settings

    named = app or load_settings().app
    settings = load_app(named).settings if named else load_settings()
    for name in pool or ():
        if name not in settings.pools:
            known = ", ".join(sorted(settings.pools))
            raise SettingsError(f"pool {name!r} is not in the settings ({known})")
    parts = Parts(
        app=named,
        pools=tuple(pool or settings.pools),
        models=models,
        dashboard=dashboard,
        dashboard_port=port,
        small=Small(cpus=cpus, memory=size(memory, "--memory")),
    )
    with ending_in_order(), Up(settings=settings, parts=parts, say=typer.echo) as running:
        typer.echo("up; Ctrl-C ends it")
        while True:
            running.round(1.0)
