"""`agentq submit`: start a run of a flow."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentq.flows.app import AgentQ
    from agentq.runs.handle import RunHandle


_INTERRUPTED = 130

_SILENT_S = 3.0
"""After so long without a result it is said why none can come, where that is so; then it is looked
for again after twice as long each time."""
_SILENT_AT_MOST_S = 60.0


def submit(
    flow: Annotated[str, typer.Argument(help="The flow's name in your app.")],
    argument: Annotated[
        str | None,
        typer.Argument(
            metavar="[JSON]", help="What the first step is given; - reads it from stdin."
        ),
    ] = None,
    app: App = None,
    key: Annotated[str | None, typer.Option("--key", help="Same key, same run.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="DURATION", help="From now, e.g. 2m.")
    ] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", metavar="LANE", help="high, normal, long or low.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose work it is.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a run and print its id; with --wait its result.

    A key is one run for each flow and tenant, whatever the argument, for as long as runs are kept
    (runs.keep). Ctrl-C ends the waiting, not the run.

    Example: agentq submit research '{"question": "what is new?"}' --deadline 2m --wait
    """
    from agentq.clock import parse_duration
    from agentq.ops.application import load_app
    from agentq.ops.units_here import adopt

    value = _value(argument)
    if deadline is not None:
        try:
            parse_duration(deadline)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--deadline") from error
    adopt(os.environ)
    aq = load_app(app, asked=True)
    found = aq.get_flow(flow)
    run = found.submit(value, key=key, deadline=deadline, priority=priority, tenant=tenant)
    if wait:
        again = " existed already: the same key" if run.duplicate else ""
        typer.echo(f"run {run.id}{again}", err=True)
        try:
            _print_result(_awaited(run, aq, found.pools), run.id, as_json=as_json)
        except KeyboardInterrupt:
            typer.echo(f"run {run.id} goes on:\n{_commands(run.id, app)}", err=True)
            raise typer.Exit(_INTERRUPTED) from None
    elif as_json:
        _print({"run": run.id, "duplicate": run.duplicate})
    else:
        again = " (the same key: it exists already)" if run.duplicate else ""
        typer.echo(f"{run.id}{again}")
        if sys.stdout.isatty():
            typer.echo(_commands(run.id, app), err=True)


def _commands(run: str, app: str | None) -> str:
    named = f" -A {app}" if app else ""
    commands = ("status", "events", "cancel")
    return "\n".join(f"  agentq {command} {run}{named}" for command in commands)


def _value(argument: str | None) -> Any:
    import orjson

    if argument is None:
        return None
    text = sys.stdin.read() if argument == "-" else argument
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise typer.BadParameter(
            f"{error}; a text is JSON with its quotes: '\"like this\"'", param_hint="JSON"
        ) from error


def _print_result(value: Any, run: str, *, as_json: bool) -> None:
    from agentq.broker.serializer import dumps

    result = dumps(value)
    if as_json:
        typer.echo(b'{"run":"' + run.encode() + b'","result":' + result + b"}")
    else:
        typer.echo(result)


def _awaited(run: RunHandle, aq: AgentQ, pools: Iterable[str]) -> Any:
    """Return the run's result; say once of each thing that stops it that it does."""
    from agentq.errors import BrokerUnavailable, WaitTimeout

    said: set[str] = set()
    silent_s = _SILENT_S
    while True:
        try:
            return run.result(timeout=silent_s)
        except WaitTimeout:
            silent_s = min(2 * silent_s, _SILENT_AT_MOST_S)
        with suppress(BrokerUnavailable):  # `result` knows how long to be patient with it
            for reason, line in _obstacles(run, aq, pools):
                if reason not in said:
                    said.add(reason)
                    typer.echo(f"run {run.id} waits: {line}", err=True)


def _obstacles(run: RunHandle, aq: AgentQ, pools: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (what does not change while it lasts, in words) of all that stops the run for now."""
    from agentq.ops.status import read_status
    from agentq.ops.why import explain

    if unserved := read_status(aq.store, brief=True).unserved(pools):
        for pool in unserved:
            line = f"no worker serves pool {pool!r} (agentq worker --pool {pool} -A MODULE:NAME)"
            yield line, line
        return
    for group in explain(aq, run.id).groups:
        first = group.waits[0]
        if first.stuck:
            yield f"{first.step} {first.alike}", group.said


def _print(body: object) -> None:
    import orjson

    typer.echo(orjson.dumps(body).decode())
