"""`celery -A mine:app worker` as its user sees it: what it finds, says, answers and leaves behind."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import pytest

from agentq.errors import RunFailed
from tests.support.redis_server import Server
from tests.support.running import BOTH_POOLS
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

WAIT = 8

MINE = """
import asyncio, os, signal, time

from agentq import AgentQ

aq = AgentQ("mine")
app = aq.celery


@aq.step(kind="cpu")
def crunch(how: str) -> str:
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return how * 2


@aq.step
async def blocks(seconds: float) -> None:
    time.sleep(seconds)


@aq.step
async def child_blocks(seconds: float) -> None:
    async def child() -> None:
        time.sleep(seconds)

    await asyncio.gather(child())


crunched = aq.flow("crunched", crunch)
blocked = aq.flow("blocked", blocks)
child_blocked = aq.flow("child-blocked", child_blocks)


@app.task
async def doubled(number: int) -> int:
    return number * 2


@app.task
async def asks(number: int) -> int:
    return doubled.delay(number).get(timeout=3)
"""


class Mine:
    """The module as a producer imports it, and its worker."""

    def __init__(self, module: ModuleType, worker: WorkerProcess) -> None:
        self.module = module
        self.worker = worker


@pytest.fixture(scope="module")
def mine(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mine]:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTQ_ENV", "test")
        patch.setenv("AGENTQ_BROKER__URL", f"{session_server.url}?cell={uuid4().hex[:12]}")
        patch.setenv("AGENTQ_WORKER__CPU_PROCESSES", "1")
        patch.syspath_prepend(folder)
        module = importlib.import_module("mine")
        worker = WorkerProcess("mine:app", options=("-n", "w@mine", *BOTH_POOLS), folder=folder)
        try:
            worker.start()
            yield Mine(module, worker)
        finally:
            worker.close()
            sys.modules.pop("mine")


@pytest.fixture
def own_worker(mine: Mine) -> Iterator[WorkerProcess]:
    """One that the test may end."""
    worker = WorkerProcess(
        "mine:app", options=("-n", "own@mine", *BOTH_POOLS), folder=mine.worker.folder
    )
    try:
        worker.start()
        yield worker
    finally:
        worker.close()


def processes(worker: WorkerProcess) -> list[str]:
    """Return what lives of the worker's session, zombies left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        state, _, _, session = stat.rpartition(")")[2].split()[:4]
        if int(session) == worker.pid and state not in "ZX":
            found.append(stat[:60])
    return found


# -- processes of cpu steps -------------------------------------------------------------------------


def test_a_cpu_step_is_found_in_the_folder_of_its_worker(mine: Mine) -> None:
    assert mine.module.crunched.submit("ab").result(timeout=WAIT) == "abab"


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exit", "the process that ran it ended with exit code 3"),
        ("kill", "the process that ran it was killed (SIGKILL): by the kernel for want of memory"),
    ],
)
def test_the_end_of_a_cpu_process_is_told_with_its_cause(mine: Mine, how: str, told: str) -> None:
    with pytest.raises(RunFailed) as caught:
        mine.module.crunched.submit(how).result(timeout=WAIT)
    assert told in str(caught.value)
    assert mine.module.crunched.submit("c").result(timeout=WAIT) == "cc"


def test_a_killed_worker_leaves_no_process(own_worker: WorkerProcess) -> None:
    # itself, resource tracker, fork server, a process for cpu steps and a spare one
    assert len(processes(own_worker)) == 5
    own_worker.send(signal.SIGKILL)
    wait_until(lambda: not processes(own_worker), lambda: f"{processes(own_worker)} end", 5)


def test_ctrl_c_ends_a_worker_and_its_cpu_processes_quietly(own_worker: WorkerProcess) -> None:
    os.killpg(own_worker.pid, signal.SIGINT)  # as a terminal does
    assert own_worker.wait_ended() == 1  # Celery's status for it, stock pools included
    assert "Traceback" not in own_worker.log()
    wait_until(lambda: not processes(own_worker), lambda: f"{processes(own_worker)} end", 5)


# -- what it answers and says ------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["conf", "report"])
def test_remote_control_tells_the_real_broker(mine: Mine, command: str) -> None:
    inspect = mine.module.app.control.inspect(["w@mine"], timeout=5, limit=1)
    told = str(getattr(inspect, command)())
    assert str(mine.module.aq.address) in told
    assert "pidbox command error" not in mine.worker.log()


def test_a_coroutine_task_leaves_celerys_line_in_the_log(mine: Mine) -> None:
    result = mine.module.doubled.delay(21)
    assert result.get(timeout=WAIT) == 42
    line = f"Task mine.doubled[{result.id}] succeeded in "
    wait_until(lambda: line in mine.worker.log(), mine.worker.log)
    [told] = [one for one in mine.worker.log().splitlines() if line in one]
    assert told.endswith("s: 42")


def test_waiting_for_a_result_in_a_task_is_refused_at_once(mine: Mine) -> None:
    with pytest.raises(RuntimeError, match=r"Never call result.get\(\) within a task!"):
        mine.module.asks.delay(1).get(timeout=WAIT)  # a wake-up may go to one that has just died


def test_a_step_that_blocks_the_loop_is_named_while_it_does(mine: Mine) -> None:
    run = mine.module.blocked.submit(1.6)
    run.result(timeout=WAIT)
    line = 1 + next(n for n, text in enumerate(MINE.splitlines()) if "time.sleep(seconds)" in text)
    told = f"step 'mine.blocks' of run {run.id} blocks the event loop, for 1."
    [warned] = [one for one in mine.worker.log().splitlines() if told in one]
    assert f"mine.py:{line}: nothing else of this worker runs" in warned


def test_a_coroutine_that_a_step_started_is_told_by_its_place(mine: Mine) -> None:
    mine.module.child_blocked.submit(1.6).result(timeout=WAIT)
    lines = [n for n, text in enumerate(MINE.splitlines(), 1) if "time.sleep(seconds)" in text]
    told = "what a step has started (a coroutine of its own) blocks the event loop"
    [warned] = [one for one in mine.worker.log().splitlines() if told in one]
    assert f"mine.py:{lines[1]}: " in warned
