"""What is read of a machine."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agentq.host.topology import Core, format_cores, parse_cores, read_topology
from tests.unit.host.sysfs import write_machine


@given(st.sets(st.integers(0, 300)))
def test_a_kernel_list_reads_back_as_written(cores: set[int]) -> None:
    assert parse_cores(format_cores(cores)) == tuple(sorted(cores))


def test_a_kernel_list_is_as_short_as_the_kernel_writes_it() -> None:
    assert format_cores([8, 0, 1, 2, 3, 10, 9]) == "0-3,8-10"


def test_smt_siblings_are_one_core(tmp_path: Path) -> None:
    root = write_machine(tmp_path, nodes=2, cores=2, smt=2)
    assert read_topology(root=root, allowed=range(8)).cores == (
        Core(node=0, threads=(0, 4)),
        Core(node=0, threads=(1, 5)),
        Core(node=1, threads=(2, 6)),
        Core(node=1, threads=(3, 7)),
    )


def test_only_allowed_and_online_cores_count(tmp_path: Path) -> None:
    root = write_machine(tmp_path, nodes=2, cores=2, smt=2)
    (root / "devices/system/cpu/online").write_text("0-6\n", encoding="ascii")
    topology = read_topology(root=root, allowed=[1, 2, 6, 7])
    assert topology.cores == (Core(node=0, threads=(1,)), Core(node=1, threads=(2, 6)))
    assert topology.allowed == (1, 2, 6)
    assert topology.nodes == (0, 1)


def test_where_no_core_is_both_allowed_and_online_the_allowed_ones_count(tmp_path: Path) -> None:
    root = write_machine(tmp_path, nodes=1, cores=8)
    (root / "devices/system/cpu/online").write_text("0-1\n", encoding="ascii")  # as lxcfs has it
    assert read_topology(root=root, allowed=[4, 5]).allowed == (4, 5)


def test_node_numbers_may_have_gaps_and_nodes_may_have_no_core(tmp_path: Path) -> None:
    root = write_machine(tmp_path, nodes=2, cores=1)
    folder = root / "devices/system/node"
    (folder / "node1").rename(folder / "node7")
    (folder / "node9").mkdir()
    (folder / "node9/cpulist").write_text("\n", encoding="ascii")
    assert read_topology(root=root, allowed=[0, 1]).nodes == (0, 7)


def test_without_sysfs_each_allowed_core_stands_alone(tmp_path: Path) -> None:
    topology = read_topology(root=tmp_path, allowed=[3, 5])
    assert topology.cores == (Core(node=0, threads=(3,)), Core(node=0, threads=(5,)))


def test_this_machine_is_what_the_kernel_lets_us_use() -> None:
    assert set(read_topology().allowed) == os.sched_getaffinity(0)
