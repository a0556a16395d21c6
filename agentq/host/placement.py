"""Which process runs on which cores: a pure function of the machine and the pools.

The rules, in order:

1. A pool's `cpus` are obeyed; an exclusive pool's are kept from all others where any are left.
2. Exclusive processes come first, and share a core with nobody else. A unit is a physical core,
   SMT siblings and all, while there are enough of those; else a logical one.
3. Shared processes get a unit each while there are enough, else all have the rest together and
   the kernel balances them.
4. With cores to spare the lowest is left alone: the system's interrupts and the broker run there.
5. With too few cores one is still kept apart for the shared; on a single core all share it.

Every placement carries the reason for it, made to be read by people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentq.errors import SettingsError
from agentq.host.topology import Topology, format_cores

Unit = tuple[int, ...]  # logical cores that are handed out together


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What placement needs to know of a pool."""

    name: str
    purpose: Literal["exclusive", "shared"]
    processes: int
    cpus: tuple[int, ...] | None = None
    """Logical cores set by hand; dealt out to the processes in turn."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where process *index* of *pool* runs, and why there."""

    pool: str
    index: int
    cores: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        """Return e.g. ``critical-0 on core 1: a core of its own``."""
        noun = "core" if len(self.cores) == 1 else "cores"
        return f"{self.pool}-{self.index} on {noun} {format_cores(self.cores)}: {self.reason}"


@dataclass(kw_only=True)
class _Seats:
    """The placements made so far."""

    taken: dict[tuple[str, int], Placement] = field(default_factory=dict)

    def give(self, seat: tuple[str, int], cores: Sequence[int], reason: str) -> None:
        pool, index = seat
        cores = tuple(sorted(cores))
        self.taken[seat] = Placement(pool=pool, index=index, cores=cores, reason=reason)


def place(topology: Topology, pools: Sequence[Pool]) -> dict[tuple[str, int], Placement]:
    """Return (pool, index) -> its placement, in the order of *pools*; the same for the same input.

    Raises:
        SettingsError: when a pool's `cpus` is empty or names a core that may not be used.
    """
    seats = _Seats()
    for pool in pools:
        if pool.cpus is not None:
            _obey(pool, pool.cpus, topology, seats)
    units = _left_over(topology, pools)
    free = [pool for pool in pools if pool.cpus is None]
    exclusive = [seat for pool in free if pool.purpose == "exclusive" for seat in _seats(pool)]
    shared = [seat for pool in free if pool.purpose == "shared" for seat in _seats(pool)]
    _divide(units, exclusive, shared, seats)
    return {seat: seats.taken[seat] for pool in pools for seat in _seats(pool)}


def _seats(pool: Pool) -> list[tuple[str, int]]:
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


def _left_over(topology: Topology, pools: Sequence[Pool]) -> list[Unit]:
    """Return the physical cores without those that were set by hand; all when none would be left.

    Shared pools give theirs up only while something else remains for the others.
    """
    physical = [core.threads for core in topology.cores]
    for purposes in (("exclusive", "shared"), ("exclusive",)):
        pinned = {cpu for p in pools if p.purpose in purposes for cpu in p.cpus or ()}
        rest = [tuple(cpu for cpu in unit if cpu not in pinned) for unit in physical]
        if any(rest):
            return [unit for unit in rest if unit]
    return physical


def _divide(
    physical: list[Unit],
    exclusive: list[tuple[str, int]],
    shared: list[tuple[str, int]],
    seats: _Seats,
) -> None:
    needed = len(exclusive) + bool(shared)
    units = physical
    if len(units) < needed:
        # First threads before their siblings, so that two exclusive ones meet on a core last.
        units = [(cpu,) for cpu, _ in _by_rank(physical)]
    if len(units) > len(exclusive) + len(shared):
        units = units[1:]
    if len(units) >= needed:
        for seat, unit in zip(exclusive, units, strict=False):
            seats.give(seat, unit, _own(unit, physical))
        _share(units[len(exclusive) :], shared, physical, seats)
    elif len(units) > 1 and shared:
        _together(units[:-1], exclusive, seats, why="too few cores for one each")
        _share(units[-1:], shared, physical, seats)
    else:
        _together(units, exclusive + shared, seats, why="too few cores to keep any apart")


def _by_rank(physical: list[Unit]) -> list[tuple[int, int]]:
    """Return (logical core, its rank on its physical core), the first of each core first."""
    ranked = [(cpu, rank) for unit in physical for rank, cpu in enumerate(unit)]
    return sorted(ranked, key=lambda pair: pair[1])


def _own(unit: Unit, physical: list[Unit]) -> str:
    whole = unit in physical
    return "a core of its own" if whole else "a hardware thread of its own, too few whole cores"


def _share(
    units: list[Unit], shared: list[tuple[str, int]], physical: list[Unit], seats: _Seats
) -> None:
    if len(units) < len(shared):
        units = [(cpu,) for cpu, _ in _by_rank(units)]
    if len(units) >= len(shared):
        for seat, unit in zip(shared, units, strict=False):
            seats.give(seat, unit, _own(unit, physical))
    else:
        _together(units, shared, seats, why="fewer cores left than shared processes")


def _together(units: list[Unit], group: list[tuple[str, int]], seats: _Seats, *, why: str) -> None:
    cores = [cpu for unit in units for cpu in unit]
    for seat in group:
        others = ", ".join(f"{pool}-{index}" for pool, index in group if (pool, index) != seat)
        company = f"shared with {others}, " if others else ""
        seats.give(seat, cores, f"{company}{why}")
