"""The plan of this machine for these settings, and how it is written for other launchers."""

from __future__ import annotations

from typing import Literal

from agentq.host.limits import OPEN_FILES
from agentq.host.machine import Machine, read_machine
from agentq.host.plan import Demand, Plan, Process
from agentq.host.planner import make_plan
from agentq.host.topology import Topology, format_cores
from agentq.settings import Settings

Launcher = Literal["numactl", "taskset", "docker"]


def plan_of(settings: Settings, *, cpu_steps: bool, machine: Machine | None = None) -> Plan:
    """Return where each process of *settings* runs, what it may use, and why.

    Args:
        settings: pools, and what is set by hand.
        cpu_steps: whether the app has steps of kind="cpu": only then processes for them are
            planned.
        machine: by default this one.

    Raises:
        SettingsError: a pool's `cpus` names a core that may not be used.
    """
    demands = demands_of(settings, cpu_steps=cpu_steps)
    return make_plan(machine or read_machine(), demands)


def demands_of(settings: Settings, *, cpu_steps: bool) -> list[Demand]:
    """Return what *settings* ask for each pool."""
    worker = settings.worker
    has_children = cpu_steps or worker.stock_pool == "prefork"
    return [
        Demand(
            name=name,
            purpose=pool.purpose,
            processes=pool.processes,
            cpus=pool.cpus,
            slots=pool.slots,
            most_slots=worker.slots,
            threads=worker.threads,
            children=(worker.cpu_processes or None) if has_children else 0,
            spare=worker.spare,
            memory_bytes=pool.memory,
            suspects=worker.suspects,
        )
        for name, pool in settings.pools.items()
    ]


def command_of(
    process: Process, *, topology: Topology, launcher: Launcher, app: str, file: str
) -> str:
    """Return the command that starts *process* with *launcher*, as one line for a shell.

    Args:
        process: of the plan.
        topology: of the machine that was planned.
        launcher: what pins it from outside; the worker pins itself and its children finer.
        app: ``module:attribute``.
        file: where the plan is kept as JSON.
    """
    cores, node = format_cores(process.all_cores), process.node
    # Its memory may be on another node than its cores, and its children on others than it.
    nodes = {topology.node_of[core] for core in process.all_cores}
    memory = {near for one in nodes if (near := topology.memory_node(one)) is not None}
    own = f"agentq worker --pool {process.pool} --index {process.index} --plan {file} -A {app}"
    match launcher:
        case "taskset":
            return f"taskset -c {cores} {own}"
        case "numactl" if node is not None:
            return f"numactl --cpunodebind={format_cores(nodes)} --membind={node} {own}"
        case "numactl":  # one node, or cores of several: there is no memory to choose
            return f"numactl --physcpubind={cores} --localalloc {own}"
        case "docker":
            mems = f" --cpuset-mems {format_cores(memory)}" if memory else ""
            files = max(process.open_files, OPEN_FILES)
            return (
                f"docker run --cpuset-cpus {cores}{mems} --memory {process.memory_bytes >> 20}m "
                f"--pids-limit {process.task_limit} --ulimit nofile={files} "
                f'-v "$PWD/{file}:/{file}:ro" IMAGE {own.replace(file, f"/{file}")}'
            )
