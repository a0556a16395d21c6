"""`agentq plan`: which process gets what of this machine, and why; what some work needs."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from agentq.ops.sizing import Workload
    from agentq.settings import Settings

_FILE = "plan.json"
_WATCH_S = 1.0
_STEPS_OF_RUN = 20
_MOST = 10**12


class As(StrEnum):
    """What a plan can be written for."""

    NUMACTL = "numactl"
    TASKSET = "taskset"
    DOCKER = "docker"


def plan(
    app: App = None,
    launcher: Annotated[
        As | None, typer.Option("--as", help="Print the command that starts each process so.")
    ] = None,
    load: Annotated[
        bool, typer.Option("--load", help="Watch how busy each core is, for a second.")
    ] = False,
    runs: Annotated[
        int | None,
        typer.Option("--runs", min=1, max=_MOST, help="What do so many runs at once need?"),
    ] = None,
    steps_per_day: Annotated[
        int | None,
        typer.Option(
            "--steps-per-day", min=1, max=_MOST, help="Of all runs. Default: 20 for each of --runs."
        ),
    ] = None,
    model_seconds: Annotated[
        float, typer.Option("--model-seconds", min=0.001, max=86_400, help="One model call takes.")
    ] = 2.0,
    model_calls: Annotated[
        float, typer.Option("--model-calls", min=0, max=1000, help="Of a step, on average.")
    ] = 1.0,
    peak: Annotated[
        float,
        typer.Option("--peak", min=1, max=1000, help="The busiest hour beside the average one."),
    ] = 3.0,
    as_json: Json = False,
) -> None:
    """Print which process gets which cores, memory node, slots and memory here, and why.

    Changes nothing. The workers that [bold]agentq up[/bold] and [bold]agentq worker[/bold] start
    take their seats from the same plan. Processes for steps of kind="cpu" are planned where the app
    has such steps.

    With --runs or --steps-per-day: what that much work needs, by the figures of [bold]agentq bench
    shares[/bold], and whether this machine is enough.

    Example: agentq plan --runs 500 --steps-per-day 1000000 --model-seconds 3
    """
    if load:
        _show_load(as_json=as_json)
        return
    settings, cpu_steps = _planned(app)
    if runs is not None or steps_per_day is not None:
        from agentq.ops.sizing import Workload

        work = Workload(
            runs=runs or 1,
            steps_per_day=steps_per_day or _STEPS_OF_RUN * (runs or 1),
            model_time=timedelta(seconds=model_seconds),
            calls=model_calls,
            peak=peak,
            keep=settings.runs.keep,
            slots=settings.worker.slots,
        )
        _show_sizing(work, as_json=as_json)
    else:
        _show_plan(settings, app or settings.app, launcher, cpu_steps=cpu_steps, as_json=as_json)


def _planned(app: str | None) -> tuple[Settings, bool]:
    """Return the settings, and whether there are steps of kind="cpu": only an app has such."""
    from agentq.settings import load_settings

    settings = load_settings()
    if not (app or settings.app):
        return settings, False  # without Celery, whose import is half of the command
    from agentq.ops.application import load_app

    aq = load_app(app)
    return aq.settings, any(step.kind == "cpu" for step in aq.steps.values())


def _show_plan(
    settings: Settings, app: str | None, launcher: As | None, *, cpu_steps: bool, as_json: bool
) -> None:
    from agentq.host.machine import read_machine
    from agentq.ops.plan import command_of, plan_of

    machine = read_machine()
    found = plan_of(settings, cpu_steps=cpu_steps, machine=machine)
    if as_json:
        typer.echo(found.as_json())
    elif launcher is not None:
        named = app or "MODULE:NAME"
        typer.echo(f"# agentq plan -A {named} --json > {_FILE}")
        for process in found.processes:
            line = command_of(
                process, topology=machine.topology, launcher=launcher.value, app=named, file=_FILE
            )
            typer.echo(line)
    else:
        from agentq.cli.show_plan import print_plan
        from agentq.cli.tables import plain_console

        print_plan(plain_console(), machine, found)


def _show_sizing(work: Workload, *, as_json: bool) -> None:
    from agentq.host.machine import read_machine
    from agentq.ops.sizing import judge, size

    needed = size(work)
    verdict = judge(needed, read_machine())
    if as_json:
        _echo_json({"needed": needed, "verdict": verdict})
        return
    from agentq.cli.show_plan import print_sizing
    from agentq.cli.tables import plain_console

    print_sizing(plain_console(), needed, verdict)


def _show_load(*, as_json: bool) -> None:
    import time

    from agentq.host.core_load import between, look, unbalanced
    from agentq.host.topology import read_topology

    before = look()
    time.sleep(_WATCH_S)
    load = between(before, look())
    finding = unbalanced(load, read_topology())
    if as_json:
        _echo_json({"load": load, "finding": finding})
        return
    from agentq.cli.show_plan import print_load
    from agentq.cli.tables import plain_console

    print_load(plain_console(), load, finding)


def _echo_json(value: object) -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps(value, default=asdict))  # whose integers may have more than 64 bits
