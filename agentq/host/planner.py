"""Makes the plan of a machine from what it has and what the settings ask for: a pure function.

cores     see `placement`
threads   physical cores x 2, within the quota and without SMT, split over the processes
children  the same, where there are steps of kind="cpu"
slots     what the settings allow, fewer where the process' memory would not hold them
memory    three quarters of what there is, split evenly; on a node at most its part of the
          node's. The rest is the system's, the broker's and its fork's.
limits    see `limits`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentq.host import measured
from agentq.host.limits import needs
from agentq.host.machine import Machine
from agentq.host.objections import LEAST_BYTES, LEAST_SLOTS, WORKERS_SHARE, objections
from agentq.host.placement import Layout, Placement, Pool, Seat, place
from agentq.host.plan import Broker, Demand, Plan, Process
from agentq.host.topology import Topology, format_cores

LEAST_THREADS = 16
_OWN_FILES = 256
"""Connections to the cell, pipes of children, libraries."""
_OWN_THREADS = 16
"""Lease, watch, sidecar, name look-ups, allocator: what a worker starts for itself, with room."""
_CHILD_TASKS = 4
"""A child's own threads: its executor's, its allocator's and a library's."""
_LOCAL = 10


def make_plan(machine: Machine, demands: Sequence[Demand]) -> Plan:
    """Return the plan; the same for the same input.

    Raises:
        SettingsError: a pool's `cpus` is empty or names a core that may not be used.
    """
    demands = _with_start_values(machine, demands)
    layout = place(machine.topology, [_pool(demand) for demand in demands])
    nodes = {
        (one.pool, one.index): _node(machine.topology, one) for one in layout.placements.values()
    }
    memory = _memory(machine, demands, nodes)
    processes = tuple(
        _process(demand, placed, nodes[seat], memory[seat])
        for demand in demands
        for seat, placed in layout.placements.items()
        if placed.pool == demand.name
    )
    found = needs(
        machine.limits,
        tasks=sum(process.tasks for process in processes),
        most_tasks=max((process.tasks for process in processes), default=0),
        open_files=max((process.open_files for process in processes), default=0),
    )
    limits = [finding for need in found if (finding := need.finding())]
    return Plan(
        processes=processes,
        reserved=layout.reserved,
        idle=layout.idle,
        broker=_broker(machine.topology, layout, processes),
        needs=found,
        findings=(*objections(machine, demands, processes, layout.idle), *limits),
    )


def _with_start_values(machine: Machine, demands: Sequence[Demand]) -> list[Demand]:
    """Fill in threads and children: twice the cores, since some of them wait, split evenly."""
    count = sum(demand.processes for demand in demands)
    each = max(1, 2 * machine.physical_cores // max(1, count))
    return [
        replace(
            demand,
            threads=demand.threads or max(LEAST_THREADS, each),
            children=each if demand.children is None else demand.children,
        )
        for demand in demands
    ]


def _pool(demand: Demand) -> Pool:
    return Pool(
        name=demand.name,
        purpose=demand.purpose,
        processes=demand.processes,
        cpus=demand.cpus,
        children=demand.children or 0,
    )


def _node(topology: Topology, placed: Placement) -> int | None:
    """Return the node whose memory this process shall use; None: there is no one node."""
    nodes = {topology.node_of[cpu] for cpu in placed.cores}
    return topology.memory_node(nodes.pop()) if len(nodes) == 1 else None


def _memory(
    machine: Machine, demands: Sequence[Demand], nodes: Mapping[Seat, int | None]
) -> dict[Seat, int]:
    """Return what each process may have, in bytes."""
    usable = int(WORKERS_SHARE * machine.memory_bytes)
    set_by_hand = sum(demand.processes * (demand.memory_bytes or 0) for demand in demands)
    planned = sum(demand.processes for demand in demands if demand.memory_bytes is None)
    even = (usable - set_by_hand) // max(1, planned)
    crowds = Counter(nodes.values())
    given = {}
    for demand in demands:
        for index in range(demand.processes):
            seat = demand.name, index
            own = demand.memory_bytes
            if own is None:
                most = _node_share(machine, nodes[seat], crowds[nodes[seat]])
                own = max(LEAST_BYTES, min(even, most or even) >> 20 << 20)
            given[seat] = own
    return given


def _node_share(machine: Machine, node: int | None, crowd: int) -> int | None:
    """Return a process' part of its node's memory; None where that is not to be relied on.

    A kernel may put memory on line bit by bit, and then a node states less than there is.
    """
    known = {one.number: one.memory_bytes for one in machine.topology.memory}
    if node is None or sum(known.values()) < WORKERS_SHARE * machine.memory_bytes:
        return None
    return int(WORKERS_SHARE * known[node]) // crowd


def _process(demand: Demand, placed: Placement, node: int | None, memory: int) -> Process:
    threads = demand.threads or 1
    children = len(placed.children) + (demand.spare if placed.children else 0)
    free = memory - measured.WORKER_BYTES - children * measured.CHILD_BYTES
    held = max(LEAST_SLOTS, free // (measured.STEP_BYTES * measured.STEP_ROOM))
    slots = demand.slots or min(demand.most_slots, held)
    return Process(
        pool=placed.pool,
        index=placed.index,
        cores=placed.cores,
        children=placed.children,
        node=node,
        slots=slots,
        threads=threads,
        memory_bytes=memory,
        open_files=_OWN_FILES + 2 * (slots + threads),  # a connection and a file for each step
        tasks=_OWN_THREADS + threads + _CHILD_TASKS * (children + demand.suspects),
        reason=placed.reason,
    )


def _broker(topology: Topology, layout: Layout, processes: Sequence[Process]) -> Broker:
    home = layout.broker_node
    node_of = topology.node_of
    reserved = tuple(cpu for cpu in layout.reserved if node_of[cpu] == home)
    cores = reserved or _only_node(topology, home)
    away = Counter(node_of[one.cores[0]] for one in processes if node_of[one.cores[0]] != home)
    company = "left to the system" if reserved else "beside workers: it is to stay on its node"
    where = (
        f"on cores {format_cores(cores)}, {company}" if cores else "on any core, beside the workers"
    )
    cost = "; ".join(
        f"processes on node {node} ({count}) reach it across the interconnect (distance "
        f"{topology.distance(node, home)}, local is {_LOCAL})"
        for node, count in sorted(away.items())
    )
    of = f"node {home}, which has the most cores" if len(topology.nodes) > 1 else ""
    reason = "; ".join(filter(None, [where, of, cost]))
    return Broker(cores=cores, node=topology.memory_node(home), reason=reason)


def _only_node(topology: Topology, home: int) -> tuple[int, ...]:
    """Return the cores of one node of several, which its memory is bound to; else none."""
    if len(topology.nodes) == 1:
        return ()
    return tuple(cpu for cpu in topology.allowed if topology.node_of[cpu] == home)
