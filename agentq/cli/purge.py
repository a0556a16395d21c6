"""`agentq purge`: move what waits into the dead letters."""

from __future__ import annotations

from typing import Annotated

import typer

from agentq.cli.options import App, Json


def purge(
    pool: Annotated[str, typer.Option("--pool", metavar="NAME")] = "",
    lane: Annotated[str, typer.Option("--lane", metavar="NAME")] = "",
    step: Annotated[str, typer.Option("--step", metavar="NAME", help="With its module.")] = "",
    flow: Annotated[str, typer.Option("--flow", metavar="NAME")] = "",
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME")] = "",
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="DURATION", help="Enqueued before this.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Move what waits and fits every filter into the dead letters.

    Queued, delayed and paused work is moved; what workers hold is left to them. Runs do not end by
    it: agentq dead replay lets them go on, agentq cancel ends them. Interrupted, it is just given
    again.

    Example: agentq purge --step shop.pay --older-than 1h --yes
    """
    from agentq.cli.options import duration
    from agentq.ops.application import cell_of
    from agentq.ops.known import read_known
    from agentq.ops.pausing import ago
    from agentq.ops.pausing import purge as move
    from agentq.store.calls import Fitting

    age = duration(older_than, "--older-than")
    fitting = Fitting(pool, lane, step, flow, tenant, ago(age))
    if fitting == Fitting():
        raise typer.BadParameter(
            "say what: at least one of --pool, --lane, --step, --flow, --tenant, --older-than"
        )
    if not yes:
        raise typer.BadParameter("it moves what waits: say that you mean it", param_hint="--yes")
    store = cell_of(app)
    moved = move(store, fitting, reason="purged")
    if as_json:
        import orjson

        typer.echo(orjson.dumps({"purged": moved}).decode())
    else:
        typer.echo(f"{moved} messages moved to the dead letters")
    for kind, name in (("step", step), ("flow", flow)):
        if name and not moved and (lacking := read_known(store).lacks(kind, name)):
            typer.echo(f"note: {lacking}", err=True)
