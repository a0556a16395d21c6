"""How busy each core is, and why some are full beside idle ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentq.errors import PlatformUnsupported
from agentq.host.core_load import CoreLoad, Load, Runner, between, look, unbalanced
from agentq.host.topology import Core, Topology
from tests.unit.host.machines import write

TWO_NODES = Topology(
    cores=tuple(Core(node=core // 2, threads=(core,)) for core in range(4)),
)


def load(
    busy: tuple[float, ...], *runners: tuple[str, float, tuple[int, ...]], interrupts: float = 0
) -> Load:
    return Load(
        cores=tuple(
            CoreLoad(core=core, busy=share, interrupts=interrupts * (share > 0.5))
            for core, share in enumerate(busy)
        ),
        runners=tuple(
            Runner(pid=100 + at, name=name, share=share, cores=cores)
            for at, (name, share, cores) in enumerate(runners)
        ),
    )


def cause(found: Load) -> str:
    finding = unbalanced(found, TWO_NODES)
    assert finding is not None
    assert finding.remedy.endswith("; mpstat -P ALL 1 shows it")
    return finding.why


@pytest.mark.parametrize(
    "busy", [(1, 1, 1, 1), (0, 0, 0, 0), (0.95, 0.5, 0.6, 0.3), (0.8, 0, 0, 0)]
)
def test_cores_that_are_alike_or_not_full_are_no_finding(busy: tuple[float, ...]) -> None:
    assert unbalanced(load(busy), TWO_NODES) is None


def test_processes_that_may_run_nowhere_else_are_the_cause() -> None:
    finding = unbalanced(load((1, 0, 0, 0), ("a", 0.5, (0,)), ("b", 0.5, (0,))), TWO_NODES)
    assert finding is not None
    assert finding.seen == "cores 0 are full (over 90%) beside idle cores 1-3"
    assert finding.why == "affinity: a (100), b (101) may run nowhere else"
    assert "taskset -apc 1-3 PID" in finding.remedy


def test_one_process_that_fills_its_core_is_the_cause() -> None:
    told = cause(load((0, 1, 0, 0), ("python", 0.98, (0, 1, 2, 3)), ("other", 0.2, (1,))))
    assert told.startswith("one hot process: python (100) uses 98% of a core")


def test_a_full_node_beside_an_idle_one_is_the_cause() -> None:
    assert cause(load((0, 0, 1, 1), ("a", 1, (2,)), ("b", 1, (3,)))) == (
        "NUMA: the full ones are those of node 1, the idle ones of others"
    )


def test_interrupts_on_a_full_core_are_the_cause() -> None:
    assert cause(load((1, 0, 0, 0), interrupts=0.4)).startswith(
        "interrupts: cores 0 spend over 30%"
    )


def test_what_nothing_explains_is_said_to_be_so() -> None:
    assert cause(load((1, 0, 0, 0))) == "no one process explains it"


def test_cores_that_are_not_ours_do_not_count() -> None:
    alone = Topology(cores=(Core(node=0, threads=(1,)),))
    assert unbalanced(load((1, 0, 0, 0)), alone) is None


def test_shares_come_from_what_was_counted_between_two_looks(tmp_path: Path) -> None:
    def at(*rows: str) -> None:
        write(tmp_path, "proc/stat", "\n".join(["cpu  1 2 3", *rows, "intr 7"]))

    at("cpu0 100 0 100 800 0 0 0 0 0 0", "cpu3 0 0 0 1000 0 0 0 0 0 0")
    before = look(root=tmp_path)
    at("cpu0 140 10 110 820 0 5 5 10 50 0", "cpu3 0 0 0 1050 50 0 0 0 0 0")
    found = between(before, look(root=tmp_path))
    assert found.cores == (
        CoreLoad(core=0, busy=0.8, interrupts=0.1),
        CoreLoad(core=3, busy=0, interrupts=0),
    )


def test_without_proc_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(PlatformUnsupported, match="/proc/stat"):
        look(root=tmp_path)


def test_two_busy_processes_that_share_a_core_of_this_machine_are_found_as_the_cause() -> None:
    core = max(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", spin]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as one,
        subprocess.Popen(command, stdout=subprocess.PIPE) as other,
    ):
        both = {one.pid, other.pid}
        try:
            for process in (one, other):
                assert process.stdout is not None
                process.stdout.readline()  # it has moved to its core
            found = _seen(both)
        finally:
            one.kill()
            other.kill()
    assert {runner.cores for runner in found.runners if runner.pid in both} == {(core,)}
    # Whatever else runs here, the other cores could be idle.
    idle = CoreLoad(core=core + 1, busy=0, interrupts=0)
    measured = next(one for one in found.cores if one.core == core)
    alone = Topology(cores=tuple(Core(node=0, threads=(at,)) for at in (core, core + 1)))
    told = unbalanced(replace(found, cores=(measured, idle)), alone)
    assert told is not None
    assert told.why.startswith("affinity: ")
    assert all(f"({pid})" in told.why for pid in both)


def _seen(pids: set[int]) -> Load:
    """Return the load of this machine once all of *pids* show in some ticks of it."""
    before = look()
    while True:
        found = between(before, look())
        took = time.monotonic() - before.at
        if took > 0.1 and pids <= {runner.pid for runner in found.runners}:
            return found
        assert took < 20
