"""What doctor finds of workers and queues in a real cell."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from agentq.ops.doctor import queues, workers
from agentq.ops.doctor.roots import Roots
from agentq.store import calls
from tests.support.cell import Cell, message
from tests.support.doctor import HOST, facts, names, reporting
from tests.unit.host.machines import write, write_host


def test_workers_that_are_well_have_no_finding(cell: Cell) -> None:
    reporting(cell, "critical-0", pools=["critical"], cores=[0], allocator="jemalloc 5.3.0")
    reporting(cell, "shared-0", pools=["shared"], cores=[1], allocator="jemalloc 5.3.0")
    found = facts(cell)
    checks = [
        workers.alive(found),
        workers.builds(found),
        workers.clocks(found),
        workers.allocators(found),
        workers.pinning(found, cores=2),
        workers.limits(found, Roots(), host="another"),
    ]
    assert [names(check) for check in checks] == [[]] * len(checks)


def test_a_pool_without_a_worker_is_found_and_is_an_error_where_work_waits(cell: Cell) -> None:
    assert names(workers.alive(facts(cell))) == ["note workers.pool"] * 2
    reporting(cell, "shared-0")
    [critical] = workers.alive(facts(cell))
    assert (critical.severity, critical.seen) == ("warning", "no worker serves pool critical")
    cell.enqueue(message("m", pool="critical"))
    [waiting] = workers.alive(facts(cell))
    assert (waiting.severity, waiting.subject) == ("error", "workers.pool")


def test_a_lease_that_ran_out_is_found(cell: Cell) -> None:
    reporting(cell, "critical-0", pools=["critical"])
    reporting(cell, "shared-0", running=3)
    cell.expire_lease("shared-0#1")
    found = {one.subject: one for one in workers.alive(facts(cell))}
    assert set(found) == {"workers.lease", "workers.pool"}
    assert f"shared-0 (process 1 on {HOST}) lost its lease" in found["workers.lease"].seen
    assert "with 3 steps" in found["workers.lease"].seen


def test_mixed_builds_are_found(cell: Cell) -> None:
    reporting(cell, "new")
    assert names(workers.builds(facts(cell))) == []
    reporting(cell, "old", build="0.0.1 (functions 1, 0)")
    [found] = workers.builds(facts(cell))
    assert "0.0.1 (functions 1, 0): old" in found.seen


def test_a_clock_that_is_off_is_found(cell: Cell) -> None:
    reporting(cell, "w", skew_ms=-9_000)
    [found] = workers.clocks(facts(cell))
    assert found.seen == "the clock of w is 9 s behind the broker's"


def test_results_that_blob_storage_does_not_take_are_found(cell: Cell) -> None:
    reporting(cell, "well")
    assert names(workers.unwritten(facts(cell))) == []
    reporting(cell, "w", unwritten=2)
    [found] = workers.unwritten(facts(cell))
    assert found.seen == "2 steps of w have ended and wait for blob storage"


def test_another_allocator_than_the_pools_is_found(cell: Cell) -> None:
    reporting(cell, "w", allocator="glibc 2.36")
    [found] = workers.allocators(facts(cell))
    assert found.seen == "w runs on glibc 2.36, its pool's setting is jemalloc"
    reporting(cell, "w", allocator="")
    assert names(workers.allocators(facts(cell))) == ["note workers.allocator"]


def test_a_critical_worker_that_shares_its_core_is_found_where_there_are_enough(
    cell: Cell,
) -> None:
    reporting(cell, "critical-0", pools=["critical"], cores=[0, 1])
    reporting(cell, "shared-0", cores=[1])
    reporting(cell, "elsewhere-0", cores=[0], host="other")
    [found] = workers.pinning(facts(cell), cores=2)
    assert found.seen == "critical-0 and shared-0 share cores 1"
    assert names(workers.pinning(facts(cell), cores=1)) == []


def test_a_limit_that_a_worker_is_near_is_found(cell: Cell) -> None:
    near = (
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "held = [os.dup(0) for _ in range(55 - len(os.listdir('/proc/self/fd')) + 1)]\n"
        "print(flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", near], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        reporting(cell, "w", pid=process.pid)
        [found] = workers.limits(facts(cell), Roots(), host=HOST)
        assert found.seen == "w: open files: 55 of 64 in use (RLIMIT_NOFILE)"
        assert found.severity == "warning"
        process.stdin.close()
    reporting(cell, "w", pid=os.getpid())
    assert names(workers.limits(facts(cell), Roots(), host=HOST)) == []


def test_memory_on_another_node_than_the_workers_cores_is_found(cell: Cell, tmp_path: Path) -> None:
    write_host(tmp_path, nodes=2, cores=2)  # 0 and 1 on node 0, 2 and 3 on node 1
    heap = "55d0c1a00000 bind:1 heap anon=100 dirty=100 N0={} N1={} kernelpagesize_kB=4"
    for pid, remote in ((41, 10), (42, 11)):
        write(tmp_path, f"proc/{pid}/numa_maps", heap.format(remote, 100 - remote))
    reporting(cell, "near", pid=41, cores=[2, 3])
    reporting(cell, "far", pid=42, cores=[2, 3])
    reporting(cell, "both", pid=43, cores=[1, 2])  # of both nodes: none of its memory is far away
    [found] = workers.remote_memory(facts(cell), Roots(root=tmp_path), host=HOST)
    assert (found.severity, found.subject) == ("warning", "workers.remote_memory")
    assert found.seen.startswith("11% of the memory of far (process 42) is not on node 1")
    assert "migratepages 42 all 1" in found.remedy
    reporting(cell, "gone", pid=44, cores=[0])
    both = names(workers.remote_memory(facts(cell), Roots(root=tmp_path), host=HOST))
    assert both == ["warning workers.remote_memory", "note workers.remote_memory"]


def test_a_worker_that_does_not_show_here_is_said(cell: Cell, tmp_path: Path) -> None:
    reporting(cell, "w", pid=42)
    [found] = workers.limits(facts(cell), Roots(root=tmp_path), host=HOST)
    assert found.seen == "not checked: w: ProcessLookupError"


def test_a_queue_that_fills_is_found(cell: Cell) -> None:
    cell.enqueue(*(message(f"m{number}", pool="shared") for number in range(9)))
    assert names(queues.depth(facts(cell, broker__max_length=10))) == ["warning queues.depth"]
    [full] = queues.depth(facts(cell, broker__max_length=9))
    assert (full.severity, full.seen) == ("error", "9 of 9 messages wait in shared:normal")
    assert names(queues.depth(facts(cell, broker__max_length=100))) == []


def test_a_queue_of_large_messages_is_found(cell: Cell) -> None:
    large = message("m", pool="shared")._replace(body=b"x" * 50_000)
    cell.enqueue(*(large._replace(id=f"m{number}") for number in range(9)))
    assert names(queues.size(cell.store, facts(cell))) == []
    [found] = queues.size(cell.store, facts(cell, broker__max_bytes=500_000))
    assert (found.severity, found.subject) == ("warning", "queues.bytes")
    assert found.seen.endswith("of 0.5 MB")


def test_work_that_has_waited_long_is_found(cell: Cell) -> None:
    cell.enqueue(message("m"))
    found = facts(cell)
    [queue] = found.cell.queues
    old = replace(found.cell, queues=(replace(queue, oldest_ms=900_000),))
    [one] = queues.depth(replace(found, cell=old))
    assert one.seen == "the first of 1 in p:normal has waited for 15 minutes"


def test_pauses_and_parked_work_are_found(cell: Cell) -> None:
    cell.store.call(calls.pause(cell.prefix, "step:shop.pay"))
    cell.enqueue(message("m"))
    cell.renew("w")
    [handed] = cell.fetch("w")
    cell.park(handed, "task shop.new", after_ms=60_000)
    paused, parked = queues.stopped(facts(cell))
    assert (paused.severity, paused.remedy) == ("note", "agentq resume step shop.pay")
    assert (parked.severity, parked.subject) == ("warning", "queues.parked")
    assert "1 wait for task shop.new" in parked.seen
    hours_ago = cell.now_ms() - 7_200_000
    cell.redis("HSET", cell.keys.paused(), "step:shop.pay", hours_ago)
    [forgotten, _] = queues.stopped(facts(cell))
    assert forgotten.severity == "warning"


def test_retries_that_wait_for_their_budget_are_noted(cell: Cell) -> None:
    found = facts(cell)
    assert names(queues.retries(found)) == []
    waiting = replace(found, cell=replace(found.cell, retries={"shared": 7}))
    [one] = queues.retries(waiting)
    assert (one.severity, one.seen) == ("note", "7 retries of pool shared wait for its budget")


def test_dead_letters_are_noted_and_warned_of_when_their_room_ends(cell: Cell) -> None:
    cell.bury(9)
    assert names(queues.dead(facts(cell))) == ["note queues.dead"]
    assert names(queues.dead(facts(cell, dead__max_number=10))) == ["warning queues.dead"]


def test_delayed_work_that_nobody_brings_back_is_found(cell: Cell) -> None:
    cell.enqueue(message("m", due=cell.now_ms() + 3_600_000))
    assert names(queues.delayed(cell.store, facts(cell))) == []
    assert names(queues.delayed(cell.store, facts(cell, broker__max_length=1))) == [
        "warning queues.delayed"
    ]
    [(member, _)] = cell.store.client.zscan_iter(cell.keys.delayed())
    cell.redis("ZADD", cell.keys.delayed(), cell.now_ms() - 120_000, member)
    [found] = queues.delayed(cell.store, facts(cell))
    assert found.seen.startswith("delayed work is overdue for ")
