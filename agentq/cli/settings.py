"""`agentq settings`: what every setting is, and where its value came from."""

from __future__ import annotations

from typing import Annotated

import typer

from agentq.cli.options import App, Json


def settings(
    prefix: Annotated[
        str | None, typer.Argument(help="Only those that begin so: worker, pools.shared, ...")
    ] = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Print every setting: its value, unit and source. Secrets are masked.

    A value comes from the first that says it: environment (AGENTQ_WORKER__SLOTS=50),
    config/$AGENTQ_ENV.toml, config/default.toml, the default. With -A, what the app's code says
    comes first.

    Example: agentq settings worker
    """
    import dataclasses

    from agentq.settings import explain, load_settings

    if app:
        from agentq.ops.application import load_app

        live = load_app(app).settings
    else:
        live = load_settings()
    found = [one for one in explain(live) if prefix is None or one.key.startswith(prefix)]
    if as_json:
        import orjson

        typer.echo(orjson.dumps([dataclasses.asdict(one) for one in found]).decode())
        return
    from rich.markup import escape

    from agentq.cli.tables import plain_console, plain_table, print_table

    table = plain_table("setting", "value", "unit", "from", "what it is", prose="what it is")
    for one in found:
        table.add_row(
            *map(escape, (one.key, _shown(one.value), one.unit, one.source, one.description))
        )
    print_table(plain_console(), table)


def _shown(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
