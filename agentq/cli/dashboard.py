"""`agentq dashboard`: Flower over this cell."""

from __future__ import annotations

from typing import Annotated

import typer

from agentq.cli.options import LAST_PORT, Announce, App, Parent


def dashboard(
    app: App = None,
    host: Annotated[str | None, typer.Option("--host", help="Default: dashboard.host.")] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=LAST_PORT, help="Default: dashboard.port; 0 takes any free one."
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Let pages give orders to workers; needs a login.")
    ] = False,
    any_port: Annotated[bool, typer.Option("--any-port", hidden=True)] = False,
    parent: Parent = 0,
    announce: Announce = -1,
) -> None:
    """Run Flower with agentq's pages; needs no worker.

    Without a login (FLOWER_BASIC_AUTH=user:password, or Flower's other ways) it stays on this
    machine, and shows without giving orders.

    Example: agentq dashboard -A myproject.flows:aq --port 5556
    """
    from agentq.cli.announcing import announcer
    from agentq.dashboard.command import serve
    from agentq.host.parent import end_with_parent
    from agentq.ops.application import looking_app

    if parent:
        end_with_parent(parent)
    aq = looking_app(app)
    serve(
        aq,
        host=host or aq.settings.dashboard.host,
        port=aq.settings.dashboard.port if port is None else port,
        announce=announcer(announce),
        control=control,
        any_port=any_port,
    )
