"""Prints a plan, what some work needs, and how busy each core is."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from agentq.cli.tables import plain_table, print_table
from agentq.host.core_load import Load
from agentq.host.finding import Finding
from agentq.host.machine import Machine
from agentq.host.plan import Plan
from agentq.host.topology import format_cores
from agentq.ops.sizing import Sizing, Verdict


def print_plan(console: Console, machine: Machine, found: Plan) -> None:
    """Print the machine, a row for each process, what is left, and what stands against it."""
    console.print(f"[bold]Machine[/bold] {_described(machine)}")
    table = plain_table(
        "process",
        ">cores",
        ">cpu steps",
        ">node",
        ">slots",
        ">threads",
        ">memory",
        "why",
        prose="why",
    )
    for one in found.processes:
        children = format_cores(cpu for child in one.children for cpu in child)
        table.add_row(
            one.name, format_cores(one.cores),
            f"{len(one.children)} x {children}" if one.children else "-",
            "-" if one.node is None else str(one.node), str(one.slots), str(one.threads),
            f"{one.memory_bytes >> 20} MiB", one.reason,
        )  # fmt: skip
    print_table(console, table)
    console.print(f"[bold]System[/bold] {_left(found)}")
    console.print(f"[bold]Broker[/bold], if it is on this machine: {found.broker.reason}")
    for finding in found.findings:
        print_finding(console, finding)


def print_finding(console: Console, finding: Finding) -> None:
    """Print what was seen, why it matters and what to do."""
    said = escape(f"{finding.subject}: {finding.seen}")
    console.print(f"[yellow]{finding.severity}[/yellow] {said}")
    console.print(f"  {escape(finding.why)}; {escape(finding.remedy)}")


def print_sizing(console: Console, needed: Sizing, verdict: Verdict) -> None:
    """Print what some work needs, and whether this machine has it."""
    table = plain_table("needed", ">", "what for", prose="what for")
    for name, value, what in (
        ("steps", f"{needed.steps_per_second:.1f}", "a second in the busiest hour"),
        ("model slots", str(needed.model_slots), "calls at once that the model server must take"),
        (
            "cores per model slot",
            f"{needed.cores_per_model_slot:.4f}",
            "of workers, to keep it busy",
        ),
        ("processes", f"{needed.critical} + {needed.shared}", "critical + shared, at half load"),
        ("worker CPU", f"{needed.worker_cores:.2f}", "cores"),
        ("broker CPU", f"{needed.broker_cores:.2f}", "of its one core"),
        ("cores", str(needed.cores), "physical; from 8 on an eighth is the system's"),
        ("worker memory", f"{needed.worker_bytes >> 20} MiB", "all processes"),
        ("broker memory", f"{needed.broker_bytes >> 20} MiB", "runs.keep included, fork included"),
    ):
        table.add_row(name, value, what)
    print_table(console, table)
    enough = "[green]yes[/green]" if verdict.enough else "[red]no[/red]"
    console.print(f"[bold]Is this machine enough?[/bold] {enough}")
    for reason in verdict.reasons:
        console.print(f"  {escape(reason)}")
    console.print("Your steps' own code comes on top; figures: agentq bench shares")


def print_load(console: Console, load: Load, finding: Finding | None) -> None:
    """Print how busy each core was, and which processes were."""
    table = plain_table(">core", ">busy", ">interrupts")
    for core in load.cores:
        table.add_row(str(core.core), f"{core.busy:.0%}", f"{core.interrupts:.0%}")
    print_table(console, table)
    processes = plain_table("process", ">id", ">of a core", "may run on")
    for one in load.runners[:10]:
        cores = format_cores(one.cores)
        processes.add_row(escape(one.name), str(one.pid), f"{one.share:.0%}", cores)
    print_table(console, processes)
    if finding is not None:
        print_finding(console, finding)


def _described(machine: Machine) -> str:
    topology = machine.topology
    nodes = len(topology.nodes)
    smt = len(topology.allowed) > len(topology.cores)
    parts = [
        f"{len(topology.cores)} physical cores",
        f"{len(topology.allowed)} with SMT" if smt else "no SMT",
        f"{nodes} nodes" if nodes > 1 else "one node",
        f"{machine.memory_bytes >> 20} MiB",
    ]
    if machine.quota is not None:
        parts.append(f"a quota of {machine.quota:g} cores")
    return ", ".join(parts)


def _left(found: Plan) -> str:
    if not found.reserved:
        return "no core of its own: there are too few (from 8 physical cores on it has an eighth)"
    return f"cores {format_cores(found.reserved)}, interrupts too"
