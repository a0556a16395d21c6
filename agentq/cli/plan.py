"""`agentq plan`: which process gets what of this machine, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from rich.console import Console

    from agentq.host.machine import Machine
    from agentq.host.plan import Plan

PLAN_FILE = "plan.json"


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
    as_json: Json = False,
) -> None:
    """Print which process gets which cores, memory node, slots and memory here, and why.

    Changes nothing. The workers that [bold]agentq up[/bold] and [bold]agentq worker[/bold] start
    take their seats from the same plan. Processes for steps of kind="cpu" are planned where the app
    has such steps.

    Example: agentq plan -A myproject.flows:aq --as taskset
    """
    from agentq.host.machine import read_machine
    from agentq.ops.application import any_app
    from agentq.ops.plan import command_of, plan_of

    aq = any_app(app)
    cpu_steps = any(step.kind == "cpu" for step in aq.steps.values())
    machine = read_machine()
    found = plan_of(aq.settings, cpu_steps=cpu_steps, machine=machine)
    if as_json:
        typer.echo(found.as_json())
    elif launcher is not None:
        named = app or aq.settings.app or "MODULE:NAME"
        typer.echo(f"# agentq plan -A {named} --json > {PLAN_FILE}")
        for process in found.processes:
            line = command_of(process, launcher=launcher.value, app=named, file=PLAN_FILE)
            typer.echo(line)
    else:
        from rich.console import Console

        _print(Console(highlight=False), machine, found)


def _print(console: Console, machine: Machine, found: Plan) -> None:
    from agentq.cli.tables import plain_table
    from agentq.host.topology import format_cores

    console.print(f"[bold]Machine[/bold] {_described(machine)}")
    table = plain_table(
        "process", ">cores", ">cpu steps on", ">node", ">slots", ">threads", ">memory", "why"
    )
    for one in found.processes:
        children = format_cores(cpu for child in one.children for cpu in child)
        table.add_row(
            one.name, format_cores(one.cores),
            f"{len(one.children)} x {children}" if one.children else "-",
            "-" if one.node is None else str(one.node), str(one.slots), str(one.threads),
            f"{one.memory_bytes >> 20} MiB", one.reason,
        )  # fmt: skip
    console.print(table)
    console.print(f"[bold]System[/bold] {_left(found)}")
    console.print(f"[bold]Broker[/bold] where it is local: {found.broker.reason}")
    for finding in found.findings:
        console.print(f"[yellow]{finding.severity}[/yellow] {finding.subject}: {finding.seen}")
        console.print(f"  {finding.why}; {finding.remedy}")


def _described(machine: Machine) -> str:
    topology = machine.topology
    nodes = len(topology.nodes)
    threads = len(topology.allowed) - len(topology.cores)
    parts = [
        f"{len(topology.cores)} physical cores",
        f"{len(topology.allowed)} with SMT" if threads else "no SMT",
        f"{nodes} nodes" if nodes > 1 else "one node",
        f"{machine.memory_bytes >> 20} MiB",
    ]
    if machine.quota is not None:
        parts.append(f"a quota of {machine.quota:g} cores")
    return ", ".join(parts)


def _left(found: Plan) -> str:
    from agentq.host.topology import format_cores

    if not found.reserved:
        return "no core of its own: there are too few (from 8 physical cores on an eighth)"
    return f"cores {format_cores(found.reserved)}, interrupts too"
