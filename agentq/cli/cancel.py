"""`agentq cancel`: end a run."""

from __future__ import annotations

from typing import Annotated

import typer

from agentq.cli.options import App, Json


def cancel(
    run: Annotated[str, typer.Argument(help="The run's id, as submit and status print it.")],
    app: App = None,
    as_json: Json = False,
) -> None:
    """Cancel a run: what waits is not started, what runs is stopped, its result refused.

    A plain def that runs in a thread can not be interrupted, by this or by a deadline: its result
    is refused, and its thread stays used until it returns.

    Example: agentq cancel 1f6c0d9a4b3e4c6f8a7d5e2b1c0f9e8d
    """
    from agentq.ops.application import any_app

    handle = any_app(app).run(run)
    ended = handle.cancel()
    state = handle.status().state.value
    if as_json:
        import orjson

        typer.echo(orjson.dumps({"run": run, "cancelled": ended, "state": state}).decode())
    else:
        typer.echo(f"run {run} cancelled" if ended else f"run {run} had ended already: {state}")
