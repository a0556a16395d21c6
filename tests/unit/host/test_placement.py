"""Which process is put on which cores, and the reason it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentq.errors import SettingsError
from agentq.host.placement import Placement, Pool, place
from agentq.host.topology import Core, Topology, read_topology
from tests.unit.host.sysfs import write_machine

CRITICAL = Pool(name="critical", purpose="exclusive", processes=1)
SHARED = Pool(name="shared", purpose="shared", processes=1)


def machine(*cores: tuple[int, ...]) -> Topology:
    return Topology(cores=tuple(Core(node=0, threads=threads) for threads in cores))


def cores_of(topology: Topology, *pools: Pool) -> dict[str, tuple[int, ...]]:
    return {f"{p.pool}-{p.index}": p.cores for p in place(topology, pools).placements.values()}


def pools(*, exclusive: int, shared: int) -> tuple[Pool, Pool]:
    return (
        Pool(name="critical", purpose="exclusive", processes=exclusive),
        Pool(name="shared", purpose="shared", processes=shared),
    )


def test_on_two_cores_critical_and_shared_get_one_each() -> None:
    assert place(machine((0,), (1,)), [CRITICAL, SHARED]).placements == {
        ("critical", 0): Placement(
            pool="critical", index=0, cores=(0,), reason="a core of its own"
        ),
        ("shared", 0): Placement(pool="shared", index=0, cores=(1,), reason="a core of its own"),
    }


def test_critical_comes_first_whatever_the_order_of_pools() -> None:
    assert cores_of(machine((0,), (1,)), SHARED, CRITICAL) == {"shared-0": (1,), "critical-0": (0,)}


def test_on_one_core_both_share_it_and_the_reason_is_said() -> None:
    placed = place(machine((3,)), [CRITICAL, SHARED]).placements
    assert [str(placement) for placement in placed.values()] == [
        "critical-0 on core 3: shared with shared-0, too few cores to keep any apart",
        "shared-0 on core 3: shared with critical-0, too few cores to keep any apart",
    ]


def test_with_cores_to_spare_the_lowest_is_left_to_the_system() -> None:
    four = machine((0,), (1,), (2,), (3,))
    assert cores_of(four, CRITICAL, SHARED) == {"critical-0": (1,), "shared-0": (2,)}


def test_an_exclusive_process_gets_the_siblings_of_its_core_too(tmp_path: Path) -> None:
    root = write_machine(tmp_path, nodes=1, cores=4, smt=2)
    topology = read_topology(root=root, allowed=range(8))
    assert cores_of(topology, *pools(exclusive=2, shared=2)) == {
        "critical-0": (0, 4),
        "critical-1": (1, 5),
        "shared-0": (2, 6),
        "shared-1": (3, 7),
    }


def test_shared_processes_take_single_threads_when_whole_cores_run_out() -> None:
    two = machine((0, 2), (1, 3))
    placed = place(two, pools(exclusive=1, shared=2)).placements
    assert cores_of(two, *pools(exclusive=1, shared=2)) == {
        "critical-0": (0, 2),
        "shared-0": (1,),
        "shared-1": (3,),
    }
    assert placed["shared", 1].reason == "a hardware thread of its own, too few whole cores"


def test_more_shared_processes_than_cores_are_left_to_the_kernel_to_balance() -> None:
    three = machine((0,), (1,), (2,))
    placed = place(three, pools(exclusive=1, shared=3)).placements
    assert cores_of(three, *pools(exclusive=1, shared=3)) == {
        "critical-0": (0,),
        "shared-0": (1, 2),
        "shared-1": (1, 2),
        "shared-2": (1, 2),
    }
    assert placed["shared", 0].reason == (
        "shared with shared-1, shared-2, fewer cores left than shared processes"
    )


def test_too_many_exclusive_processes_still_share_no_core_with_the_shared() -> None:
    assert cores_of(machine((0,), (1,)), *pools(exclusive=2, shared=2)) == {
        "critical-0": (0,),
        "critical-1": (0,),
        "shared-0": (1,),
        "shared-1": (1,),
    }


def test_cores_set_by_hand_are_dealt_out_and_kept_from_the_others() -> None:
    pinned = Pool(name="critical", purpose="exclusive", processes=2, cpus=(1, 2, 3))
    placed = place(machine((0,), (1,), (2,), (3,)), [pinned, SHARED]).placements
    assert {seat: p.cores for seat, p in placed.items()} == {
        ("critical", 0): (1, 3),
        ("critical", 1): (2,),
        ("shared", 0): (0,),
    }
    assert placed["critical", 0].reason == "set by pools.critical.cpus"


def test_processes_beyond_the_cores_set_by_hand_start_over() -> None:
    pinned = Pool(name="shared", purpose="shared", processes=3, cpus=(0, 1))
    assert cores_of(machine((0,), (1,)), pinned) == {
        "shared-0": (0,),
        "shared-1": (1,),
        "shared-2": (0,),
    }


def test_a_shared_pool_on_all_cores_by_hand_does_not_leave_critical_without() -> None:
    pinned = Pool(name="shared", purpose="shared", processes=1, cpus=(0, 1))
    assert cores_of(machine((0,), (1,)), CRITICAL, pinned) == {
        "critical-0": (1,),
        "shared-0": (0, 1),
    }


@pytest.mark.parametrize(
    ("cpus", "message"),
    [
        ((1, 7, 8), "pools.critical.cpus names core 7-8; this process may use 0-1"),
        ((), "pools.critical.cpus is empty; this process may use 0-1"),
    ],
)
def test_a_core_that_may_not_be_used_is_refused_by_name(
    cpus: tuple[int, ...], message: str
) -> None:
    pinned = Pool(name="critical", purpose="exclusive", processes=1, cpus=cpus)
    with pytest.raises(SettingsError) as refusal:
        place(machine((0,), (1,)), [pinned])
    assert str(refusal.value) == message


@given(
    physical=st.integers(1, 12),
    smt=st.integers(1, 2),
    exclusive=st.integers(0, 8),
    shared=st.integers(0, 16),
)
def test_every_process_has_a_core_and_exclusive_ones_meet_no_shared_one_from_two_cores_on(
    physical: int, smt: int, exclusive: int, shared: int
) -> None:
    topology = machine(*(tuple(range(c, physical * smt, physical)) for c in range(physical)))
    wanted = pools(exclusive=exclusive, shared=shared)
    placed = place(topology, wanted).placements
    assert placed == place(topology, wanted).placements
    assert len(placed) == exclusive + shared
    assert all(p.cores and set(p.cores) <= set(topology.allowed) for p in placed.values())
    kept = [set(p.cores) for (pool, _), p in placed.items() if pool == "critical"]
    open_ = {cpu for (pool, _), p in placed.items() if pool == "shared" for cpu in p.cores}
    if physical * smt > 1:
        assert not open_.intersection(*[set().union(*kept)])
    left = len(topology.allowed) - len(place(topology, wanted).reserved)
    if left >= exclusive + bool(shared):
        assert sum(map(len, kept)) == len(set().union(*kept))


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Return nodes of unequal size, with or without SMT, with gaps in the numbers of cores."""
    smt = draw(st.integers(1, 2))
    sizes = draw(st.lists(st.integers(1, 10), min_size=1, max_size=3))
    numbers = iter(draw(st.permutations(range(64))))
    cores = [
        Core(node=node, threads=tuple(sorted(next(numbers) for _ in range(smt))))
        for node, size in enumerate(sizes)
        for _ in range(size)
    ]
    return Topology(cores=tuple(sorted(cores, key=lambda core: (core.node, core.threads))))


@st.composite
def crowds(draw: st.DrawFn) -> list[Pool]:
    return [
        Pool(
            name=f"pool{number}",
            purpose=draw(st.sampled_from(("exclusive", "shared"))),
            processes=draw(st.integers(0, 6)),
            children=draw(st.integers(0, 4)),
        )
        for number in range(draw(st.integers(1, 4)))
    ]


@given(topology=machines(), crowd=crowds())
def test_nobody_shares_a_core_while_another_is_free_children_included(
    topology: Topology, crowd: list[Pool]
) -> None:
    layout = place(topology, crowd)
    users = [cores for placed in layout.placements.values() for cores in placed.every]
    busy = {cpu for cores in users for cpu in cores}
    free = set(topology.allowed) - busy - set(layout.reserved)
    assert all(users)
    assert free == set(layout.idle)
    whole = any(free >= set(core.threads) for core in topology.cores)
    kept_apart = any(pool.purpose == "exclusive" for pool in crowd)
    # The other thread of a core in use is for who uses it, not for those that are kept apart.
    if whole or (free and not kept_apart):
        assert sum(map(len, users)) == len(busy)


@given(topology=machines(), crowd=crowds())
def test_exclusive_pools_share_no_core_with_others_children_included(
    topology: Topology, crowd: list[Pool]
) -> None:
    layout = place(topology, crowd)
    used: dict[str, set[int]] = {}
    for placed in layout.placements.values():
        used.setdefault(placed.pool, set()).update(*placed.every)
    open_ = {cpu for pool in crowd if pool.purpose == "shared" for cpu in used.get(pool.name, ())}
    usable = set(topology.allowed) - set(layout.reserved)
    for pool in crowd:
        if pool.purpose == "exclusive" and len(usable) > 1:
            assert not open_ & used.get(pool.name, set())


@given(topology=machines(), crowd=crowds())
def test_from_eight_cores_on_an_eighth_is_left_to_the_system(
    topology: Topology, crowd: list[Pool]
) -> None:
    layout = place(topology, crowd)
    reserved = [core for core in topology.cores if set(core.threads) <= set(layout.reserved)]
    count = len(topology.cores)
    assert len(layout.reserved) == sum(len(core.threads) for core in reserved)  # whole cores
    if count >= 8:
        assert len(reserved) == round(count / 8)
        nodes = {core.node for core in reserved}
        assert len(nodes) == min(len(reserved), len(topology.nodes))  # of every node in turn
        assert any(core.node == layout.broker_node for core in reserved)
    else:
        assert len(reserved) <= 1


@given(topology=machines(), crowd=crowds())
def test_processes_leave_the_brokers_node_only_when_it_is_full(
    topology: Topology, crowd: list[Pool]
) -> None:
    layout = place(topology, crowd)
    node_of = {cpu: core.node for core in topology.cores for cpu in core.threads}
    mains = {cpu for placed in layout.placements.values() for cpu in placed.cores}
    assume(len(layout.placements) <= len(topology.cores) - len(layout.reserved))  # whole cores
    if any(node_of[cpu] != layout.broker_node for cpu in mains):
        at_home = {cpu for cpu, node in node_of.items() if node == layout.broker_node}
        assert at_home <= mains | set(layout.reserved)
