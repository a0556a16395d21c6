"""`agentq why`: what a run waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentq.ops.why import Why


def why(
    run: Annotated[str, typer.Argument(help="The run's id, as submit and status print it.")],
    app: App = None,
    as_json: Json = False,
) -> None:
    """Say what a run waits for: step, queue and place, limit, pause, retry or lease, since when.

    Example: agentq why 1f6c0d9a4b3e4c6f8a7d5e2b1c0f9e8d
    """
    from agentq.ops.application import any_app
    from agentq.ops.why import explain

    found = explain(any_app(app), run)
    if as_json:
        import orjson

        typer.echo(orjson.dumps(found).decode())
        return
    typer.echo(f"run {run}: {found.said}")
    for line in lines(found):
        typer.echo(f"  {line}")


def lines(found: Why) -> Iterator[str]:
    """Yield in words what a run waits for, one line for all that is alike."""
    from agentq.cli.show_run import seconds

    for group in found.groups:
        first, at_most = group.waits[0], "up to " if len(group.waits) > 1 else ""
        # What waits does so from when it was first queued, whatever it has waited for since.
        ended = {"dead letter": "ago", "worker": "so far"}.get(first.where, "since it was ready")
        since = f" ({at_most}{seconds(group.for_ms)} {ended})" if group.for_ms is not None else ""
        yield f"{group.said}{since}"
