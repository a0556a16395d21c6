"""What our transport promises under Celery's own consumer when processes and links die."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentq.errors import WorkerLost
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.stage import APP, Stage, on_stage
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT, WorkerProcess

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.timeout(30)]

WAIT = 20
LEASE_S = 3
"""As `on_stage` sets it."""


@pytest.fixture
def stage(session_server: Server, ledger: Ledger) -> Iterator[Stage]:
    with on_stage(session_server, ledger) as found:
        yield found


@pytest.fixture
def own_worker(stage: Stage) -> WorkerProcess:
    """A worker that the test may kill."""
    return stage.worker("prefork", "own")


@pytest.fixture
def canvas(stage: Stage) -> Any:
    return stage.app


@pytest.fixture
def clean(stage: Stage) -> Iterator[None]:
    yield
    stage.check_clean()


def running(ledger: Ledger, count: int = 1) -> list[str]:
    return wait_until(
        lambda: (found := [x for x in ledger.lines() if x.startswith("waiting")])
        and len(found) == count and found,
        ledger.lines,
    )  # fmt: skip


def test_lost_connection_starts_nothing_twice(
    canvas: Any, own_worker: WorkerProcess, stage: Stage, ledger: Ledger, tmp_path: Path
) -> None:
    result = canvas.wait_for.delay(str(tmp_path / "go"))
    running(ledger)
    stage.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    stage.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")
    assert canvas.number.delay(1).get(timeout=WAIT) == 1  # it consumes again
    time_over_lease = time.monotonic() + LEASE_S + 1.5
    wait_until(lambda: time.monotonic() > time_over_lease, "a lease to pass")
    assert len(running(ledger)) == 1
    (tmp_path / "go").touch()
    assert result.get(timeout=WAIT) == "done"
    assert own_worker.alive()


def test_server_restart_is_survived(
    canvas: Any, own_worker: WorkerProcess, stage: Stage, ledger: Ledger, tmp_path: Path
) -> None:
    result = canvas.wait_for.delay(str(tmp_path / "go"))
    running(ledger)
    stage.server.restart()
    (tmp_path / "go").touch()
    assert result.get(timeout=WAIT) == "done"
    assert canvas.add.delay(1, 2).get(timeout=WAIT) == 3
    assert len(running(ledger)) == 1
    assert own_worker.alive()


def test_warm_shutdown_ends_the_running_task_and_hands_the_rest_back(
    canvas: Any, own_worker: WorkerProcess, stage: Stage, ledger: Ledger, tmp_path: Path
) -> None:
    result = canvas.wait_for.delay(str(tmp_path / "go"))
    running(ledger)
    os.kill(own_worker.pid, signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in own_worker.log(), own_worker.log)
    (tmp_path / "go").touch()
    assert own_worker.stop() == 0
    assert result.get(timeout=WAIT) == "done"
    assert stage.client.zcard(stage.key("workers")) == 0


def test_worker_that_slept_over_its_lease_is_refused(
    canvas: Any, own_worker: WorkerProcess, stage: Stage, ledger: Ledger, tmp_path: Path
) -> None:
    result = canvas.wait_for.delay(str(tmp_path / "go"))
    running(ledger)
    stage.worker("prefork", "other")
    os.killpg(own_worker.pid, signal.SIGSTOP)
    running(ledger, 2)  # the other has it
    (tmp_path / "go").touch()
    assert result.get(timeout=WAIT) == "done"
    os.killpg(own_worker.pid, signal.SIGCONT)
    wait_until(lambda: "is refused" in own_worker.log(), own_worker.log)
    assert own_worker.alive()


def test_two_beats_submit_each_entry_once(
    own_worker: WorkerProcess, stage: Stage, ledger: Ledger, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "celery", "-A", "tests.support.apps.beating", "beat"]
    beats = [
        subprocess.Popen(
            [*command, "-s", str(tmp_path / f"schedule{number}"), "--pidfile="],
            cwd=ROOT, env={**os.environ, **stage.variables},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for number in (1, 2)
    ]  # fmt: skip
    try:
        began = wait_until(
            lambda: ledger.count("noted tick") >= 1 and time.monotonic(), ledger.lines
        )
        wait_until(lambda: ledger.count("noted tick") >= 6, ledger.lines)
        # Six slots of a second span more than four; two of each would be there after two.
        assert time.monotonic() - began > 4
    finally:
        for beat in beats:
            beat.terminate()
        for beat in beats:
            beat.wait(10)
    assert own_worker.alive()


def test_plain_celery_app_works_by_its_urls_alone(stage: Stage) -> None:
    from celery import chord, group

    process = WorkerProcess("tests.support.apps.plain", options=("-c", "2"), env=stage.variables)
    process.start()
    try:
        sys.modules.pop(process.app, None)  # another test has it, with another server's address
        plain = importlib.import_module(process.app)

        assert plain.add.delay(1, 2).get(timeout=WAIT) == 3
        assert (plain.add.s(1, 2) | plain.add.s(3)).apply_async().get(timeout=WAIT) == 6
        members = [plain.add.s(i, i) for i in range(10)]
        assert group(members).apply_async().get(timeout=WAIT) == [2 * i for i in range(10)]
        assert chord(members, plain.total.s()).apply_async().get(timeout=WAIT) == 90
        assert plain.add.apply_async((1, 1), countdown=1).get(timeout=WAIT) == 2
        with pytest.raises(ValueError, match="wrong"):
            plain.fail.delay().get(timeout=WAIT)
        wait_until(
            lambda: not stage.server.streams(stage.cell),
            lambda: str(stage.server.streams(stage.cell)),
        )
    finally:
        process.stop()
        process.close()


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_other_stock_pools_run_tasks(canvas: Any, stage: Stage, ledger: Ledger, pool: str) -> None:
    from celery import chord

    process = WorkerProcess(APP, options=("-P", pool, "-c", "2"), env=stage.variables)
    process.start()
    try:
        assert f"({pool.removesuffix('s')})" in process.log()
        flow = chord([canvas.number.s(i) for i in range(20)], canvas.total.s())
        assert flow.apply_async().get(timeout=WAIT) == 190
        assert canvas.twice_then.delay(3).get(timeout=WAIT) == 3
        assert ledger.lines() == ["total 20", "attempt 0", "attempt 1", "attempt 2"]
    finally:
        process.stop()
        process.close()


def test_priority_zero_beats_the_default(canvas: Any, stage: Stage, ledger: Ledger) -> None:
    for value in range(5):
        canvas.noted.delay(value)
    last = canvas.noted.apply_async(("first",), priority=0)
    process = WorkerProcess(APP, options=("-P", "solo"), env=stage.variables)
    process.start()
    try:
        last.get(timeout=WAIT)
        wait_until(lambda: len(ledger.lines()) == 6, ledger.lines)
        assert ledger.lines()[0] == "noted first"
    finally:
        process.stop()
        process.close()


def test_task_that_kills_its_process_is_given_up_after_three_deaths(
    canvas: Any, own_worker: WorkerProcess, stage: Stage, ledger: Ledger
) -> None:
    result = canvas.fatal.apply_async(link_error=canvas.failed.s())
    with pytest.raises(WorkerLost, match="died 3 times"):
        result.get(timeout=WAIT)
    wait_until(lambda: ledger.count(f"failed {result.id}") == 1, ledger.lines)
    assert ledger.count("fatal") == 3
    assert stage.dead_letter(result.id)[b"why"] == b"its worker died 3 times while it ran"
    assert own_worker.alive()


def test_message_for_a_task_that_the_worker_lacks_waits_for_one_that_has_it(
    canvas: Any, own_worker: WorkerProcess, stage: Stage
) -> None:
    unknown = canvas.app.signature("nobody.knows").apply_async()
    wait_until(lambda: "no task nobody.knows here" in own_worker.log(), own_worker.log)
    wait_until(lambda: stage.client.zcard(stage.key("delayed")) == 1, "the message to rest")
    assert unknown.state == "PENDING"
    assert canvas.number.delay(1).get(timeout=WAIT) == 1
    assert own_worker.alive()
