"""The plan of whole machines, written as trees: small, large, odd, contained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentq.errors import SettingsError
from agentq.host.machine import read_machine
from agentq.host.plan import Demand, Plan, read_plan
from agentq.host.planner import make_plan
from tests.unit.host.machines import GB, write, write_host, write_node, written


def demands(
    *, exclusive: int = 1, shared: int = 1, children: int | None = 0, slots: int | None = None
) -> list[Demand]:
    return [
        Demand(
            name="critical", purpose="exclusive", processes=exclusive, children=children,
            slots=slots,
        ),
        Demand(
            name="shared", purpose="shared", processes=shared, children=children, slots=slots
        ),
    ]  # fmt: skip


def cores_of(plan: Plan) -> dict[str, tuple[int, ...]]:
    return {process.name: process.cores for process in plan.processes}


def said(plan: Plan, subject: str) -> list[str]:
    return [finding.seen for finding in plan.findings if finding.subject == subject]


def test_on_one_node_of_two_cores_nothing_is_left_to_the_system(tmp_path: Path) -> None:
    plan = make_plan(written(tmp_path, nodes=1, cores=2), demands())
    assert cores_of(plan) == {"critical-0": (0,), "shared-0": (1,)}
    assert (plan.reserved, plan.broker.cores, plan.broker.node) == ((), (), None)
    assert [process.threads for process in plan.processes] == [16, 16]
    assert [process.node for process in plan.processes] == [None, None]
    assert [process.memory_bytes for process in plan.processes] == [6 * GB, 6 * GB]
    assert plan.findings == ()


def test_from_eight_cores_on_the_first_is_the_systems_however_many_workers(tmp_path: Path) -> None:
    plan = make_plan(written(tmp_path, nodes=1, cores=8), demands(exclusive=2, shared=6))
    assert plan.reserved == plan.broker.cores == (0,)
    assert cores_of(plan)["critical-0"] == (1,)
    assert cores_of(plan)["shared-5"] == cores_of(plan)["shared-0"] == (3, 4, 5, 6, 7)
    assert said(plan, "cores") == [
        "shared-0, shared-1, shared-2, shared-3, shared-4, shared-5 share cores 3-7"
    ]


def test_of_more_processes_than_a_person_reads_the_first_are_named(tmp_path: Path) -> None:
    plan = make_plan(written(tmp_path, nodes=1, cores=2), demands(exclusive=1, shared=1024))
    others = ", ".join(f"shared-{index}" for index in range(8))
    assert plan.processes[-1].reason == (
        f"shared with {others} and 1015 more, fewer cores left than shared processes"
    )
    assert said(plan, "cores") == [f"{others} and 1016 more share cores 1"]
    assert len(plan.as_json()) < 1024 * 1024


def test_two_nodes_with_smt_give_whole_cores_and_fill_the_brokers_node_first(
    tmp_path: Path,
) -> None:
    plan = make_plan(written(tmp_path, nodes=2, cores=8, smt=2), demands(exclusive=2, shared=6))
    assert plan.reserved == (0, 8, 16, 24)  # the first core of each node, both threads
    assert plan.broker.cores == (0, 16)
    assert plan.broker.node == 0
    cores = cores_of(plan)
    assert cores["critical-0"] == (1, 17)
    assert cores["shared-4"] == (7, 23)
    assert cores["shared-5"] == (9, 25)
    nodes = {process.name: process.node for process in plan.processes}
    assert (nodes["shared-4"], nodes["shared-5"]) == (0, 1)
    assert plan.broker.reason == (
        "on cores 0,16, left to the system; node 0, which has the most cores; "
        "processes on node 1 (1) reach it across the interconnect (distance 21, local is 10)"
    )


def test_a_broker_with_no_core_left_to_it_stays_on_the_node_that_has_its_memory(
    tmp_path: Path,
) -> None:
    plan = make_plan(written(tmp_path, nodes=2, cores=2), demands(shared=3))
    assert plan.reserved == ()
    assert (plan.broker.cores, plan.broker.node) == ((0, 1), 0)
    assert plan.broker.reason.startswith("on cores 0-1, beside workers: it is to stay on its node")


def test_four_nodes_of_32_cores_keep_an_eighth_and_each_child_has_a_core(tmp_path: Path) -> None:
    machine = written(tmp_path, nodes=4, cores=32, memory=512 * GB)  # as a Kunpeng 920 pair has
    plan = make_plan(machine, demands(exclusive=4, shared=28, children=2))
    assert plan.reserved == tuple(
        32 * node + cpu for node in range(4) for cpu in range(4)
    )  # 12.5 %
    own = [core for process in plan.processes for core in process.cores]
    children = [cpu for one in plan.processes for child in one.children for cpu in child]
    assert len(set(own) | set(children)) == len(own) + len(children) == 96
    assert {process.node for process in plan.processes[:28]} == {0}
    assert plan.processes[31].cores == (39,)  # four beyond the 28 of node 0 that are not reserved
    on_node_0 = [one for one in plan.processes if one.cores[0] < 32]
    assert sum(one.memory_bytes for one in on_node_0 if one.node == 0) <= 96 * GB


def test_twice_the_physical_cores_are_split_over_the_processes_smt_left_out(tmp_path: Path) -> None:
    machine = written(tmp_path, nodes=2, cores=32, smt=2)
    plan = make_plan(machine, demands(shared=3, children=None))
    assert [len(process.children) for process in plan.processes] == [2 * 64 // 4] * 4
    assert [process.threads for process in plan.processes] == [2 * 64 // 4] * 4


def test_a_container_has_the_cores_of_its_cpuset_the_time_of_its_quota_and_its_memory(
    tmp_path: Path,
) -> None:
    root = write_host(tmp_path, nodes=1, cores=16)
    write(root, "sys/fs/cgroup/cpuset.cpus.effective", "4-6")
    write(root, "sys/fs/cgroup/cpu.max", "150000 100000")
    write(root, "sys/fs/cgroup/memory.max", 2 * GB)
    write(root, "sys/fs/cgroup/pids.max", 100)
    plan = make_plan(read_machine(root=root), demands(children=None))
    assert cores_of(plan) == {"critical-0": (4,), "shared-0": (5,)}
    assert plan.processes[0].children == ((6,),)  # one left for two children: by the first of them
    assert plan.processes[1].children == ((5,),)
    assert [process.memory_bytes for process in plan.processes] == [768 * 2**20] * 2
    assert said(plan, "CPU quota") == ["2 processes have the time of 1.5 cores together"]
    assert said(plan, "threads of the group") == ["100, and the plan needs 600 (pids.max)"]


def test_a_node_with_memory_only_is_named_and_not_used(tmp_path: Path) -> None:
    root = write_host(tmp_path, nodes=2, cores=3, memory=32 * GB)
    write(root, "sys/devices/system/node/online", "0-1,4")
    write(root, "sys/devices/system/node/node4/cpulist", "")
    write_node(root, 4, memory=64 * GB, distances="17 28 10")
    machine = read_machine(root=root)
    assert machine.topology.nodes == (0, 1)
    assert machine.topology.distance(0, 4) == 20  # the row of node 0 says nothing of it
    assert machine.topology.distance(4, 1) == 28
    plan = make_plan(machine, demands())
    assert {process.node for process in plan.processes} == {0}
    assert said(plan, "memory nodes") == ["node 4 has 65536 MiB and no core to use"]


def test_a_node_without_memory_uses_that_of_the_nearest(tmp_path: Path) -> None:
    root = write_host(tmp_path, nodes=3, cores=1, memory=30 * GB)
    write_node(root, 0, memory=0, distances="10 40 20")
    plan = make_plan(read_machine(root=root), demands(shared=2))
    assert {process.name: process.node for process in plan.processes} == {
        "critical-0": 2, "shared-0": 2, "shared-1": 1,
    }  # fmt: skip


def test_without_a_node_folder_and_with_cores_off_line_and_gaps(tmp_path: Path) -> None:
    root = write_host(tmp_path, nodes=1, cores=8)
    write(root, "sys/devices/system/cpu/online", "0,2,5-6")
    for path in sorted((root / "sys/devices/system/node").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    machine = read_machine(root=root)
    assert (machine.topology.memory, machine.physical_cores) == ((), 4)
    plan = make_plan(machine, demands(shared=2))
    assert cores_of(plan) == {"critical-0": (2,), "shared-0": (5,), "shared-1": (6,)}
    assert plan.reserved == (0,)
    assert {process.node for process in plan.processes} == {None}


def test_a_node_that_states_less_memory_than_there_is_is_not_believed(tmp_path: Path) -> None:
    root = write_host(tmp_path, nodes=2, cores=2, memory=32 * GB)
    for node in range(2):
        write_node(root, node, memory=GB, distances="10 21" if node == 0 else "21 10")
    plan = make_plan(read_machine(root=root), demands())
    assert [process.memory_bytes for process in plan.processes] == [12 * GB] * 2


def test_where_memory_is_short_there_are_fewer_slots_unless_they_are_set(tmp_path: Path) -> None:
    machine = written(tmp_path, memory=480 * 2**20)
    plan = make_plan(machine, demands())
    assert [process.memory_bytes >> 20 for process in plan.processes] == [180, 180]
    assert [process.slots for process in plan.processes] == [917, 917]
    assert said(plan, "slots") == [
        "critical-0 has 917, shared-0 has 917 instead of 1000 (worker.slots)"
    ]
    assert [one.slots for one in make_plan(machine, demands(slots=5000)).processes] == [5000] * 2


def test_memory_set_by_hand_beyond_what_there_is_is_an_error(tmp_path: Path) -> None:
    by_hand = Demand(name="shared", purpose="shared", processes=2, memory_bytes=10 * GB)
    plan = make_plan(written(tmp_path, memory=16 * GB), [by_hand])
    assert [finding.severity for finding in plan.findings if finding.subject == "memory"] == [
        "error"
    ]
    assert said(plan, "memory") == ["the workers may use 20480 MiB of 16384 MiB"]


def test_cores_given_to_nobody_are_said(tmp_path: Path) -> None:
    plan = make_plan(written(tmp_path, nodes=1, cores=16), demands())
    assert said(plan, "cores") == ["physical cores that are given to nobody: 12"]


def test_a_low_limit_on_open_files_is_said_with_its_remedy(tmp_path: Path) -> None:
    root = write_host(tmp_path, files=4096)
    [finding] = make_plan(read_machine(root=root), demands()).findings
    assert finding.seen == "4096, and the plan needs 65535 (RLIMIT_NOFILE, hard)"
    assert finding.remedy.startswith("LimitNOFILE=65535 in the unit")


def test_threads_are_planned_three_times_as_many_as_are_needed(tmp_path: Path) -> None:
    plan = make_plan(read_machine(root=write_host(tmp_path, processes=300)), demands())
    each = [process.tasks for process in plan.processes]
    assert each == [16 + 16 + 4 * 16] * 2
    assert said(plan, "threads of the user") == ["300, and the plan needs 576 (RLIMIT_NPROC)"]
    assert {process.task_limit for process in plan.processes} == {3 * 96}


def test_a_plan_is_read_back_as_it_was_kept_and_anything_else_is_refused(tmp_path: Path) -> None:
    plan = make_plan(written(tmp_path, nodes=2, cores=8, smt=2), demands(children=None))
    kept = tmp_path / "plan.json"
    kept.write_bytes(plan.as_json())
    assert read_plan(kept) == plan
    kept.write_text("{}", encoding="ascii")
    with pytest.raises(SettingsError, match=r"plan.json is no plan of this version"):
        read_plan(kept)


def test_spare_children_take_memory_and_tasks_where_there_are_children(tmp_path: Path) -> None:
    machine = written(tmp_path, nodes=1, cores=2)
    for children in (2, 0):
        asked = [replace(one, memory_bytes=280 << 20) for one in demands(children=children)]
        plain = make_plan(machine, asked).seat("shared", 0)
        spared = make_plan(machine, [replace(one, spare=2) for one in asked]).seat("shared", 0)
        assert (spared.tasks > plain.tasks, spared.slots < plain.slots) == (children > 0,) * 2
