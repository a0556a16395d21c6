"""`agentq events`: what happened in a run, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from datetime import datetime

    from agentq.runs.record import RunEvent, RunStatus


def events(
    run: Annotated[str, typer.Argument(help="The run's id, as submit and status print it.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends; Ctrl-C stops looking.")
    ] = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Print a run's events: steps that ended, retries, lost workers, fan-outs, progress, its end.

    With --json one object a line.

    Example: agentq events 1f6c0d9a4b3e4c6f8a7d5e2b1c0f9e8d --follow
    """
    from agentq.ops.application import any_app

    handle = any_app(app).run(run)
    began, last = handle.status().submitted, None
    try:
        for event in handle.events() if follow else handle.history():
            typer.echo(_json(event) if as_json else _line(event, began))
            last = event.kind
    except KeyboardInterrupt:
        raise typer.Exit from None
    if last != "end" and (end := _unwritten_end(handle.status())):
        typer.echo(_json(end) if as_json else _line(end, began))


def _unwritten_end(status: RunStatus) -> RunEvent | None:
    """Return the end of a run that is expired by the clock, which no worker has written down."""
    from agentq.runs.record import RunEvent, RunState

    if status.state is not RunState.EXPIRED or status.ended is None:
        return None
    ended_ms = int(status.ended.timestamp() * 1000)
    return RunEvent(f"{ended_ms}-0", "end", status.state.value)


def _json(event: RunEvent) -> str:
    import orjson

    return orjson.dumps({"id": event.id, "kind": event.kind, "data": event.data}).decode()


def _line(event: RunEvent, began: datetime) -> str:
    """Return e.g. ``   12 ms  step      plan: done on shared-0@vm, ran 3 ms``."""
    from agentq.cli.show_run import seconds

    since = int(event.id.split("-")[0]) - began.timestamp() * 1000
    return f"{seconds(max(0.0, since)):>9}  {event.kind:<9} {_said(event)}"


def _said(event: RunEvent) -> str:
    from agentq.cli.show_run import seconds

    data = event.data
    if not isinstance(data, dict):
        return "" if data is None else str(data)
    match event.kind:
        case "step" | "retry":
            error = f": {data['error']}: {data['message']}" if "error" in data else ""
            again = f", again in {seconds(data['after'])}" if "after" in data else ""
            attempt = f", attempt {data['attempt']}" if data["attempt"] > 1 else ""
            return (
                f"{data['step']} {data['state']} on {data['worker']}, ran {seconds(data['ran'])}"
                f"{attempt}{error}{again}"
            )
        case "lost":
            from agentq.ops.timeline import loss_of

            return f"{data['step']} on {data['worker']}: {loss_of(data)}"
        case "progress":
            of = f"/{data['total']}" if "total" in data else ""
            done = f" ({data['done']}{of})" if "done" in data else ""
            return f"{data['step']}: {data['message']}{done}"
        case _:
            return ", ".join(f"{key} {value}" for key, value in data.items())
