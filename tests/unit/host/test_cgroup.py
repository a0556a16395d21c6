"""The limits of a control group, in both versions, in a container and beside it."""

from __future__ import annotations

import os
from pathlib import Path

from agentq.host.cgroup import Cgroup, read_cgroup
from tests.unit.host.machines import write


def test_without_control_groups_there_are_no_limits(tmp_path: Path) -> None:
    assert read_cgroup(root=tmp_path) == Cgroup()


def test_version_2_in_a_container_that_sees_its_group_as_the_root(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/")
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory pids")
    write(tmp_path, "sys/fs/cgroup/cpuset.cpus.effective", "4-6")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "150000 100000")
    write(tmp_path, "sys/fs/cgroup/memory.max", 2**31)
    write(tmp_path, "sys/fs/cgroup/pids.max", 200)
    write(tmp_path, "sys/fs/cgroup/pids.current", 17)
    assert read_cgroup(root=tmp_path) == Cgroup(
        cores=(4, 5, 6), quota=1.5, memory_bytes=2**31, tasks=200, tasks_now=17
    )


def test_version_2_takes_the_least_of_a_group_and_those_above_it(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    write(tmp_path, "proc/self/cgroup", "0::/agentq.slice/worker.service")
    write(tmp_path, f"{top}/cgroup.controllers", "cpu memory pids")
    write(tmp_path, f"{top}/agentq.slice/cpu.max", "400000 100000")
    write(tmp_path, f"{top}/agentq.slice/memory.max", 2**30)
    write(tmp_path, f"{top}/agentq.slice/pids.max", 100)
    write(tmp_path, f"{top}/agentq.slice/pids.current", 90)
    write(tmp_path, f"{top}/agentq.slice/worker.service/cpu.max", "max 100000")
    write(tmp_path, f"{top}/agentq.slice/worker.service/memory.max", 2**32)
    write(tmp_path, f"{top}/agentq.slice/worker.service/pids.max", 50)
    write(tmp_path, f"{top}/agentq.slice/worker.service/pids.current", 10)
    found = read_cgroup(root=tmp_path)
    assert (found.quota, found.memory_bytes) == (4.0, 2**30)
    assert (found.tasks, found.tasks_now) == (100, 90)  # the nearer one to its limit


def test_a_group_may_have_a_name_of_any_letters(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "memory")
    (tmp_path / "proc/self").mkdir(parents=True)
    for name in ("köln.slice".encode(), b"\xff.slice"):
        (tmp_path / "proc/self/cgroup").write_bytes(b"0::/" + name + b"\n")
        write(tmp_path, f"sys/fs/cgroup/{os.fsdecode(name)}/memory.max", 2**30)
        assert read_cgroup(root=tmp_path).memory_bytes == 2**30


def test_version_1_has_a_folder_for_each_controller_and_hidden_ones_count_no_less(
    tmp_path: Path,
) -> None:
    top = "sys/fs/cgroup"
    path = "/docker/4f5e"
    write(
        tmp_path,
        "proc/self/cgroup",
        f"5:cpu,cpuacct:{path}\n4:cpuset:{path}\n3:memory:{path}\n0::/",
    )
    # A container without a name space of its own sees only its own folder, as the root.
    write(tmp_path, f"{top}/cpu,cpuacct/cpu.cfs_quota_us", 250_000)
    write(tmp_path, f"{top}/cpu,cpuacct/cpu.cfs_period_us", 100_000)
    write(tmp_path, f"{top}/cpuset/cpuset.effective_cpus", "0,2")
    write(tmp_path, f"{top}/cpuset/cpuset.cpus", "")
    write(tmp_path, f"{top}/memory/memory.limit_in_bytes", 9_223_372_036_854_771_712)
    assert read_cgroup(root=tmp_path) == Cgroup(cores=(0, 2), quota=2.5)


def test_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    write(tmp_path, "proc/self/cgroup", "4:memory:/agentq\n0::/")
    write(tmp_path, f"{top}/memory/agentq/memory.limit_in_bytes", 2**30)
    write(tmp_path, f"{top}/unified/cgroup.procs", "")
    assert read_cgroup(root=tmp_path) == Cgroup(memory_bytes=2**30)


def test_this_process_group_is_what_the_kernel_says() -> None:
    found = read_cgroup()
    assert found.tasks is None or found.tasks_now is not None
    assert found.memory_bytes is None or found.memory_bytes > 0
