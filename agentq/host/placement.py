"""Which process runs on which cores: a pure function of the machine and the pools.

The rules, in order. A unit is a physical core, SMT siblings and all, while there are enough of
those; else a logical one.

1. A pool's `cpus` are obeyed; an exclusive pool's are kept from all others where any are left.
2. From 8 physical cores on an eighth of them (10-15 %, with whole cores 9-17 % at 11 to 13) is left
   to the system, the broker and interrupts: the lowest of each node in turn. Below 8 one core would
   be too much of the machine: the lowest is left alone while there are more than processes.
3. The broker is on the node with the most cores. Processes fill that node first, then the nearest:
   on other nodes every message crosses the interconnect.
4. Exclusive processes come first, and share a core with nobody else. On one core all share it; with
   too few one is still kept apart for the shared.
5. Shared processes get a unit each while there are enough, else those of a node have its rest
   together and the kernel balances them.
6. Children (the processes for steps of kind="cpu") get the units that are left, one each while
   there are enough, else dealt out in turn. Exclusive pools' are kept apart; those of a pool that
   gets none of them use the cores of their own processes.

Every placement carries the reason for it, made to be read by people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from agentq.errors import SettingsError
from agentq.host.finding import listed
from agentq.host.topology import Topology, format_cores

Unit = tuple[int, ...]  # logical cores that are handed out together
Seat = tuple[str, int]  # pool and index

RESERVE_FROM = 8
"""Physical cores from which on some are left to the system."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What placement needs to know of a pool."""

    name: str
    purpose: Literal["exclusive", "shared"]
    processes: int
    cpus: tuple[int, ...] | None = None
    """Logical cores set by hand; dealt out to the processes in turn."""
    children: int = 0
    """Processes for steps of kind="cpu" that each of its processes has."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where process *index* of *pool* runs, and why there."""

    pool: str
    index: int
    cores: tuple[int, ...]
    reason: str
    children: tuple[tuple[int, ...], ...] = ()
    """The cores of each of its children, by slot."""

    @property
    def every(self) -> tuple[tuple[int, ...], ...]:
        """The cores of the process, then those of each child."""
        return (self.cores, *self.children)

    def __str__(self) -> str:
        """Return e.g. ``critical-0 on core 1: a core of its own``."""
        noun = "core" if len(self.cores) == 1 else "cores"
        return f"{self.pool}-{self.index} on {noun} {format_cores(self.cores)}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where everything runs."""

    placements: dict[Seat, Placement]
    """In the order of the pools."""
    reserved: tuple[int, ...]
    """Logical cores for the system, the broker and interrupts."""
    idle: tuple[int, ...]
    """Logical cores that were given to nobody."""
    broker_node: int


@dataclass(kw_only=True)
class _Seats:
    """The placements made so far."""

    taken: dict[Seat, Placement] = field(default_factory=dict)

    def give(self, seat: Seat, cores: Sequence[int], reason: str) -> None:
        pool, index = seat
        cores = tuple(sorted(cores))
        self.taken[seat] = Placement(pool=pool, index=index, cores=cores, reason=reason)


def place(topology: Topology, pools: Sequence[Pool]) -> Layout:
    """Return where each process of *pools* runs; the same for the same input.

    Raises:
        SettingsError: when a pool's `cpus` is empty or names a core that may not be used.
    """
    seats = _Seats()
    for pool in pools:
        if pool.cpus is not None:
            _obey(pool, pool.cpus, topology, seats)
    broker_node = _broker_node(topology)
    free = [pool for pool in pools if pool.cpus is None]
    exclusive = [seat for pool in free if pool.purpose == "exclusive" for seat in _seats(pool)]
    shared = [seat for pool in free if pool.purpose == "shared" for seat in _seats(pool)]
    crowd = sum(pool.processes * (1 + pool.children) for pool in free)
    units, reserved = _left_over(topology, pools, broker_node, crowd)
    _divide(units, exclusive, shared, seats, topology)
    _place_children(seats, free, units, topology)
    used = {c for placed in seats.taken.values() for cores in placed.every for c in cores}
    placements = {seat: seats.taken[seat] for pool in pools for seat in _seats(pool)}
    return Layout(
        placements=placements,
        reserved=tuple(sorted(cpu for unit in reserved for cpu in unit)),
        idle=tuple(sorted(cpu for unit in units for cpu in unit if cpu not in used)),
        broker_node=broker_node,
    )


def _seats(pool: Pool) -> list[Seat]:
    return [(pool.name, index) for index in range(pool.processes)]


def _obey(pool: Pool, cpus: tuple[int, ...], topology: Topology, seats: _Seats) -> None:
    unknown = set(cpus) - set(topology.allowed)
    if unknown or not cpus:
        named = f"names core {format_cores(unknown)}" if unknown else "is empty"
        raise SettingsError(
            f"pools.{pool.name}.cpus {named}; this process may use {format_cores(topology.allowed)}"
        )
    for seat in _seats(pool):
        own = cpus[seat[1] :: pool.processes] or (cpus[seat[1] % len(cpus)],)
        seats.give(seat, own, f"set by pools.{pool.name}.cpus")
        # The loop's is the first; its children go through the others, and meet it last.
        turns = tuple((own[(slot + 1) % len(own)],) for slot in range(pool.children))
        seats.taken[seat] = replace(seats.taken[seat], children=turns)


def _broker_node(topology: Topology) -> int:
    counts = dict.fromkeys(topology.nodes, 0)
    for core in topology.cores:
        counts[core.node] += 1
    return max(counts, key=lambda node: (counts[node], -node), default=0)


def _left_over(
    topology: Topology, pools: Sequence[Pool], broker_node: int, processes: int
) -> tuple[list[Unit], list[Unit]]:
    """Return the units for processes, the broker's node first, and those left to the system."""
    free = _without_pinned(topology, pools)
    nodes = sorted(topology.nodes, key=lambda n: (topology.distance(broker_node, n), n))
    by_node = [[unit for node_, unit in free if node_ == node] for node in nodes]
    in_turn = [unit for row in zip_longest(*by_node) for unit in row if unit is not None]
    count = len(topology.cores)
    if count >= RESERVE_FROM:
        keep = min(round(count / 8), len(free) - 1)
    else:
        keep = int(len(free) > processes)
    reserved = in_turn[:keep]
    return [unit for row in by_node for unit in row if unit not in reserved], reserved


def _without_pinned(topology: Topology, pools: Sequence[Pool]) -> list[tuple[int, Unit]]:
    """Return (node, physical core) without those that were set by hand; all when none is left.

    Shared pools give theirs up only while something else remains for the others.
    """
    physical = [(core.node, core.threads) for core in topology.cores]
    for purposes in (("exclusive", "shared"), ("exclusive",)):
        pinned = {cpu for p in pools if p.purpose in purposes for cpu in p.cpus or ()}
        rest = [(node, tuple(cpu for cpu in unit if cpu not in pinned)) for node, unit in physical]
        if any(unit for _, unit in rest):
            return [(node, unit) for node, unit in rest if unit]
    return physical


def _divide(
    physical: list[Unit],
    exclusive: list[Seat],
    shared: list[Seat],
    seats: _Seats,
    topology: Topology,
) -> None:
    needed = len(exclusive) + bool(shared)
    units = physical
    if len(units) < needed:
        # First threads before their siblings, so that two exclusive ones meet on a core last.
        units = _threads(physical)
    if len(units) >= needed:
        for seat, unit in zip(exclusive, units, strict=False):
            seats.give(seat, unit, _own(unit, physical))
        _share(units[len(exclusive) :], shared, physical, seats, topology)
    elif len(units) > 1 and shared:
        _together(units[:-1], exclusive, seats, why="too few cores for one each")
        _share(units[-1:], shared, physical, seats, topology)
    else:
        _together(units, exclusive + shared, seats, why="too few cores to keep any apart")


def _threads(units: list[Unit]) -> list[Unit]:
    """Return the logical cores of *units*, the first of each physical core first."""
    ranked = [(rank, cpu) for unit in units for rank, cpu in enumerate(unit)]
    return [(cpu,) for _, cpu in sorted(ranked, key=lambda pair: pair[0])]


def _own(unit: Unit, physical: list[Unit]) -> str:
    whole = unit in physical
    return "a core of its own" if whole else "a hardware thread of its own, too few whole cores"


def _share(
    units: list[Unit],
    shared: list[Seat],
    physical: list[Unit],
    seats: _Seats,
    topology: Topology,
) -> None:
    if len(units) < len(shared):
        units = _threads(units)
    if len(units) >= len(shared):
        for seat, unit in zip(shared, units, strict=False):
            seats.give(seat, unit, _own(unit, physical))
        return
    nodes: dict[int, list[Unit]] = {}
    for unit in units:
        nodes.setdefault(topology.node_of[unit[0]], []).append(unit)
    groups: dict[int, list[Seat]] = {node: [] for node in nodes}
    for seat in shared:
        fullest = min(nodes, key=lambda node: (len(groups[node]) + 1) / len(nodes[node]))
        groups[fullest].append(seat)
    for node, group in groups.items():
        _together(nodes[node], group, seats, why="fewer cores left than shared processes")


def _together(units: list[Unit], group: list[Seat], seats: _Seats, *, why: str) -> None:
    cores = [cpu for unit in units for cpu in unit]
    for seat in group:
        others = listed([f"{pool}-{index}" for pool, index in group if (pool, index) != seat])
        company = f"shared with {others}, " if others else ""
        seats.give(seat, cores, f"{company}{why}")


def _place_children(
    seats: _Seats, pools: Sequence[Pool], units: list[Unit], topology: Topology
) -> None:
    """Give each child its cores."""
    exclusive = [[pool] for pool in pools if pool.purpose == "exclusive"]
    groups = [*exclusive, [pool for pool in pools if pool.purpose == "shared"]]
    wanted = [sum(pool.processes * pool.children for pool in group) for group in groups]
    owners = {
        cpu: number
        for number, group in enumerate(groups)
        for pool in group
        for seat in _seats(pool)
        for cpu in seats.taken[seat].cores
    }
    left = [unit for unit in units if owners.keys().isdisjoint(unit)]
    # A thread beside one in use is for whoever has that one.
    own: list[list[Unit]] = [[] for _ in groups]
    for unit in units:
        if (rest := tuple(cpu for cpu in unit if cpu not in owners)) and rest != unit:
            own[next(owners[cpu] for cpu in unit if cpu in owners)].append(rest)
    wanted = [max(0, want - len(has)) for want, has in zip(wanted, own, strict=True)]
    for group, has, share in zip(groups, own, _shares(len(left), wanted), strict=True):
        _deal(seats, group, [*has, *left[:share]], topology)
        left = left[share:]


def _shares(count: int, wanted: Sequence[int]) -> list[int]:
    """Return what each gets of *count*: what it wants, else its part by the largest remainder."""
    total = sum(wanted)
    if total <= count:
        return list(wanted)
    exact = [count * want / total for want in wanted]
    shares = [int(part) for part in exact]
    by_remainder = sorted(range(len(wanted)), key=lambda one: shares[one] - exact[one])
    for one in by_remainder[: count - sum(shares)]:
        shares[one] += 1
    return shares


def _deal(seats: _Seats, pools: Sequence[Pool], units: list[Unit], topology: Topology) -> None:
    """Deal *units* to the children of *pools*: the first of each process, the second of each...

    Each gets one on its process' node while there are such, and none twice while another is free.
    """
    fresh: list[Unit] = []
    for slot in range(max((pool.children for pool in pools), default=0)):
        for seat in (seat for pool in pools if slot < pool.children for seat in _seats(pool)):
            placed = seats.taken[seat]
            fresh = fresh or list(units)
            home = topology.node_of[placed.cores[0]]
            near = (unit for unit in fresh if topology.node_of[unit[0]] == home)
            cores = next(near, fresh[0] if fresh else placed.cores)
            if fresh:
                fresh.remove(cores)
            seats.taken[seat] = replace(placed, children=(*placed.children, cores))
