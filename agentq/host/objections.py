"""What stands against a plan: too few cores, a quota, too little memory, cores that stay idle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentq.host.finding import Finding, listed
from agentq.host.machine import Machine
from agentq.host.plan import Demand, Process
from agentq.host.topology import format_cores

WORKERS_SHARE = 0.75
"""The part of memory that all workers together may have."""
LEAST_BYTES = 128 * 2**20
LEAST_SLOTS = 16


def objections(
    machine: Machine,
    demands: Sequence[Demand],
    processes: Sequence[Process],
    idle: Sequence[int],
) -> tuple[Finding, ...]:
    """Return what an operator should know of the plan, the limits apart; *idle*: unused cores."""
    return (
        *_cores(machine, processes, idle),
        *_quota(machine, processes),
        *_memory(machine, demands, processes),
        *_nodes(machine),
    )


def _cores(
    machine: Machine, processes: Sequence[Process], idle: Sequence[int]
) -> Iterator[Finding]:
    owners: dict[int, list[str]] = {}
    for process in processes:
        for cpu in process.cores:
            owners.setdefault(cpu, []).append(process.name)
    if crowded := {cpu: names for cpu, names in owners.items() if len(names) > 1}:
        names = [one.name for one in processes if not crowded.keys().isdisjoint(one.cores)]
        yield Finding(
            severity="warning",
            subject="cores",
            seen=f"{listed(names)} share cores {format_cores(crowded)}",
            why="each waits while another runs",
            remedy="lower pools.<name>.processes, or give the workers more cores",
        )
    spare = sum(not set(core.threads).isdisjoint(idle) for core in machine.topology.cores)
    if spare and machine.quota is None:
        yield Finding(
            severity="note",
            subject="cores",
            seen=f"physical cores that are given to nobody: {spare}",
            why="a worker's loop uses one core",
            remedy="more workers: pools.<name>.processes",
        )


def _quota(machine: Machine, processes: Sequence[Process]) -> Iterator[Finding]:
    if machine.quota is not None and len(processes) > machine.quota:
        yield Finding(
            severity="warning",
            subject="CPU quota",
            seen=f"{len(processes)} processes have the time of {machine.quota:g} cores together",
            why="all of them are stopped for the rest of each period once it is used up, "
            "exclusive pools too",
            remedy="lower pools.<name>.processes or raise the quota (cpu.max, docker run --cpus)",
        )


def _memory(
    machine: Machine, demands: Sequence[Demand], processes: Sequence[Process]
) -> Iterator[Finding]:
    total = sum(process.memory_bytes for process in processes)
    if machine.memory_bytes and total > WORKERS_SHARE * machine.memory_bytes:
        yield Finding(
            severity="error" if total > machine.memory_bytes else "warning",
            subject="memory",
            seen=f"the workers may use {total >> 20} MiB of {machine.memory_bytes >> 20} MiB",
            why="the system and the broker, which forks to write its file, need a quarter",
            remedy="lower pools.<name>.memory or pools.<name>.processes",
        )
    wanted = {demand.name: demand.slots or demand.most_slots for demand in demands}
    short = [process for process in processes if process.slots < wanted[process.pool]]
    if short:
        yield Finding(
            severity="note",
            subject="slots",
            seen=listed([f"{process.name} has {process.slots}" for process in short])
            + f" instead of {max(wanted[process.pool] for process in short)} (worker.slots)",
            why="more steps that wait would not fit into its memory",
            remedy="raise pools.<name>.memory, or set pools.<name>.slots to have them all the same",
        )


def _nodes(machine: Machine) -> Iterator[Finding]:
    topology = machine.topology
    bare = [node for node in topology.memory if node.number not in topology.nodes]
    if (held := [node for node in bare if node.memory_bytes]) and len(topology.memory) > 1:
        yield Finding(
            severity="note",
            subject="memory nodes",
            seen=f"node {format_cores(node.number for node in held)} has "
            f"{sum(node.memory_bytes for node in held) >> 20} MiB and no core to use",
            why="processes are bound to the memory beside their cores, and do not use it",
            remedy="none is needed; leave it to the page cache and to other programs",
        )
