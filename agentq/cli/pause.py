"""`agentq pause` and `agentq resume`: stop what harms, go on."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from agentq.cli.options import App, Json

KindName = Literal["pool", "step", "flow", "tenant"]
What = Annotated[KindName, typer.Argument(metavar="KIND", help="pool, step, flow or tenant.")]
Name = Annotated[str, typer.Argument(help="Its name; a step's with its module: shop.pay.")]


def pause(
    kind: What,
    name: Name,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Also what the app lacks: another app's workers have it."),
    ] = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Start nothing more of a pool, step, flow or tenant until it is resumed.

    What runs already goes on. What waits keeps its place: a pool's in its queues, the rest put
    aside. Deadlines are not paused. A name that neither the app nor a worker has is refused;
    without an app it is paused, and told.

    Example: agentq pause step shop.pay
    """
    from agentq.ops.application import any_app
    from agentq.ops.known import read_known
    from agentq.ops.pausing import Kind, doubt
    from agentq.ops.pausing import pause as begin

    aq = any_app(app)
    named = bool(app or aq.settings.app)
    doubted = doubt(aq, Kind(kind), name, named=named, workers=read_known(aq.store))
    if doubted and named and not anyway:
        raise typer.BadParameter(f"{doubted} (--anyway pauses it)", param_hint="NAME")
    new = begin(aq.store, Kind(kind), name)
    if as_json:
        _print({"kind": kind, "name": name, "paused": True, "new": new})
    else:
        typer.echo(f"{kind} {name} paused" if new else f"{kind} {name} was paused already")
    if doubted:
        typer.echo(f"but {doubted}; agentq resume {kind} {name} lifts it", err=True)


def resume(kind: What, name: Name, app: App = None, as_json: Json = False) -> None:
    """Go on with what was paused, in its order and before what came later.

    Example: agentq resume step shop.pay
    """
    from agentq.ops.application import cell_of
    from agentq.ops.pausing import Kind
    from agentq.ops.pausing import resume as end

    done = end(cell_of(app), Kind(kind), name)
    if as_json:
        _print({"kind": kind, "name": name, "resumed": done.paused, "messages": done.brought_back})
    elif not done.paused:
        typer.echo(f"{kind} {name} was not paused")
    else:
        aside = f"; {done.brought_back} messages go on" if done.brought_back else ""
        typer.echo(f"{kind} {name} resumed{aside}")


def _print(body: object) -> None:
    import orjson

    typer.echo(orjson.dumps(body).decode())
