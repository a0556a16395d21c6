"""`agentq metrics`: what Prometheus scrapes."""

from __future__ import annotations

from typing import Annotated

import typer

from agentq.cli.options import LAST_PORT, Announce, App, Parent


def metrics(
    app: App = None,
    host: Annotated[str | None, typer.Option("--host", help="Default: metrics.host.")] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=LAST_PORT, help="Default: metrics.port; 0 takes any free one."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print them and end, for a text file collector.")
    ] = False,
    parent: Parent = 0,
    announce: Announce = -1,
) -> None:
    """Serve the cell's metrics for Prometheus; needs no worker and, without -A, no app.

    They are read from the broker at each scrape: queues by pool and lane, pools, workers, dead
    letters, the server. One for a cell is enough. [bold]agentq dashboard[/bold] has them under
    /metrics too, beside Flower's. Alert rules: deploy/prometheus/agentq.rules.yml.

    Example: agentq metrics --port 9465
    """
    from agentq.cli.announcing import announcer
    from agentq.cli.told_to_end import ending_in_order
    from agentq.errors import SettingsError
    from agentq.extras import pip_install
    from agentq.host.parent import end_with_parent
    from agentq.ops.application import looking_app

    try:
        from agentq.ops.metrics import page, serving
    except ModuleNotFoundError as error:
        raise SettingsError(f"agentq metrics: no {error.name}: {pip_install('worker')}") from None
    if parent:
        end_with_parent(parent)
    aq = looking_app(app)
    if once:
        typer.echo(page(aq).decode(), nl=False)
        return
    where = host or aq.settings.metrics.host
    chosen = aq.settings.metrics.port if port is None else port
    with ending_in_order(), serving(aq, host=where, port=chosen) as (address, thread):
        announcer(announce)(address)
        thread.join()
