"""Workers that take their seat from a plan: cores, children by slot, nice value, OOM score."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from agentq.host.plan import Process, read_plan
from agentq.host.process import descendants
from agentq.ops.worker_process import TAKE_SEAT
from tests.support.command_line import Home, home
from tests.support.redis_server import Server
from tests.support.waiting import wait_until

CORES = sorted(os.sched_getaffinity(0))[:2]

_APP = """
import os
from agentq import AgentQ

aq = AgentQ("mine")
app = aq.celery

@aq.step(kind="cpu")
def place(_: int) -> list[int]:
    return [os.getpid(), *sorted(os.sched_getaffinity(0))]

@app.task
def pinned() -> list[int]:
    from billiard.process import current_process
    return [current_process().index, os.getpid(), *sorted(os.sched_getaffinity(0))]

placed = aq.flow("placed", place)
"""

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


@pytest.fixture
def user(session_server: Server) -> Iterator[Home]:
    with home() as own:
        (own.work / "mine.py").write_text(_APP, encoding="utf-8")
        os.environ["AGENTQ_BROKER__URL"] = f"{session_server.url}?cell={uuid4().hex[:12]}"
        try:
            yield own
        finally:
            del os.environ["AGENTQ_BROKER__URL"]


def variables(**more: str) -> dict[str, str]:
    return {"AGENTQ_BROKER__URL": os.environ["AGENTQ_BROKER__URL"], **more}


def planned(user: Home, **env: str) -> tuple[Path, Process]:
    """Return a plan's file, in which the shared worker's children are on a core each."""
    asked = user.run("plan", "-A", "mine:aq", "--json", env=env)
    kept = user.work / "plan.json"
    kept.write_text(asked.stdout, encoding="utf-8")
    plan = read_plan(kept)
    found = plan.seat("shared", 0)
    assert found is not None
    seat = replace(found, cores=(CORES[1],), children=tuple((core,) for core in CORES))
    kept.write_bytes(replace(plan, processes=(seat,)).as_json())
    return kept, seat


def exchange_cores(kept: Path) -> None:
    """Change the plan in *kept*: what was on the one core is on the other."""
    plan = read_plan(kept)
    [seat] = plan.processes
    swapped = replace(seat, cores=(CORES[0],), children=tuple((core,) for core in CORES[::-1]))
    kept.write_bytes(replace(plan, processes=(swapped,)).as_json())


def threads_on(pid: int) -> dict[int, list[set[int]]]:
    """Return where the threads of a process and of its descendants may run: once what all may."""
    found: dict[int, list[set[int]]] = {}
    for one in (pid, *descendants(pid)):
        for thread in Path(f"/proc/{one}/task").iterdir():
            cores = os.sched_getaffinity(int(thread.name))
            if cores not in found.setdefault(one, []):
                found[one].append(cores)
    return found


def exchanged(places: list[set[int]]) -> list[set[int]]:
    other = dict(zip(CORES, CORES[::-1], strict=True))
    return [{other[core] for core in cores} for cores in places]


def test_a_worker_takes_the_seat_that_stands_in_the_plan_and_again_when_it_has_changed(
    user: Home,
) -> None:
    asked = variables(AGENTQ_POOLS__SHARED__NICE="7", AGENTQ_POOLS__SHARED__OOM_SCORE="300")
    kept, found = planned(user, **asked)
    command = ("worker", "--pool", "shared", "--plan", str(kept), "-A", "mine:aq")
    with user.running(*command, until="open files:", env=asked) as worker:
        pid = worker.process.pid
        assert tuple(sorted(os.sched_getaffinity(pid))) == found.cores
        assert os.getpriority(os.PRIO_PROCESS, pid) == 7
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "300"
        assert f"({found.reason}); nice 7; OOM score 300; " in worker.output
        pinned = [os.sched_getaffinity(child) for child in descendants(pid)]
        assert all(set(child) in pinned for child in found.children)
        placed = user.run("submit", "placed", "1", "--wait", "-A", "mine:aq", env=asked)
        assert placed.stdout.strip().endswith(f",{CORES[0]}]")  # the first slot's

        before = threads_on(pid)
        exchange_cores(kept)
        os.kill(pid, TAKE_SEAT)
        wait_until(
            lambda: threads_on(pid) == {one: exchanged(cores) for one, cores in before.items()},
            lambda: f"{before}\n{threads_on(pid)}\n{worker.output}",
        )
        assert worker.end(signal.SIGTERM) == 0


def test_processes_of_celerys_prefork_are_pinned_by_index_and_who_replaces_one_too(
    user: Home,
) -> None:
    asked = variables(AGENTQ_WORKER__STOCK_POOL="prefork", AGENTQ_WORKER__CPU_PROCESSES="2")
    kept, found = planned(user, **asked)
    cores = [set(child) for child in found.children]
    command = ("worker", "--pool", "shared", "--plan", str(kept), "-A", "mine:aq")
    with user.running(*command, until="open files:", env=asked) as worker:

        def children() -> dict[int, set[int]]:
            return {child: os.sched_getaffinity(child) for child in descendants(worker.process.pid)}

        def are_pinned() -> bool:
            return sorted(children().values(), key=sorted) == sorted(cores, key=sorted)

        wait_until(are_pinned, lambda: f"children on {cores}: {children()}\n{worker.output}")
        killed = next(iter(children()))
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in children() and are_pinned(), "its place is taken")
        before = threads_on(worker.process.pid)
        exchange_cores(kept)
        os.kill(worker.process.pid, TAKE_SEAT)
        wait_until(
            lambda: (
                threads_on(worker.process.pid)
                == {one: exchanged(cores) for one, cores in before.items()}
            ),
            lambda: f"{before}\n{threads_on(worker.process.pid)}\n{worker.output}",
        )
        assert worker.end(signal.SIGTERM) == 0
