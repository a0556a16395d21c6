"""What `agentq status` reads from a cell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from agentq.cli.main import app as command
from agentq.ops.known import read_known
from agentq.ops.status import read_status
from tests.support.cell import Cell, message
from tests.support.doctor import reporting
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import BOTH_POOLS, running
from tests.support.waiting import wait_until


@pytest.fixture
def cell(url: str) -> Cell:
    return Cell(url)


def test_a_new_cell_has_neither_queues_nor_workers_nor_runs(cell: Cell) -> None:
    found = read_status(cell.store)
    assert (found.queues, found.workers, found.runs, found.runs_known) == ((), (), {}, 0)
    assert (found.delayed, found.dead.number, found.dead.bytes) == (0, 0, 0)


def test_work_that_waits_is_told_from_work_that_workers_hold(cell: Cell) -> None:
    cell.enqueue(*(message(f"m{number}") for number in range(5)))
    cell.enqueue(message("urgent", lane="high"), lane="high")
    cell.renew("w")
    assert len(cell.fetch("w", 3)) == 3  # urgent, m0 and m1
    high, normal = read_status(cell.store).queues
    assert (high.lane, high.waiting, high.held, high.oldest_ms) == ("high", 0, 1, None)
    assert (normal.pool, normal.lane, normal.waiting, normal.held) == ("p", "normal", 3, 2)
    assert normal.oldest_ms is not None
    assert 0 <= normal.oldest_ms < 30_000


def test_work_that_came_back_waits_as_well(cell: Cell) -> None:
    cell.enqueue(message("m"))
    cell.renew("w")
    [handed] = cell.fetch("w")
    cell.fail(handed)
    [queue] = read_status(cell.store).queues
    assert (queue.waiting, queue.held) == (1, 0)


def test_a_worker_whose_lease_ran_out_is_lost(cell: Cell) -> None:
    cell.renew("good#1", pools=["p"])
    cell.renew("late#2", pools=["p"])
    cell.expire_lease("late#2")
    states = {worker.name: worker.state for worker in read_status(cell.store).workers}
    assert states == {"good": "up", "late": "lost"}


def test_a_worker_with_celerys_own_pool_has_its_name(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.expiring", url, ledger, WORKER__LEASE="1s") as app:
        app.worker("named", options=(*BOTH_POOLS, "-P", "prefork", "-c", "1"))
        [worker] = wait_until(lambda: read_status(app.app.aq.store).workers, "it has reported")
        assert worker.name == "named@test"
        store, steps = app.app.aq.store, set(app.app.aq.steps)
        wait_until(lambda: steps <= read_known(store).steps, "it has said what it has")
        assert read_known(store).flows == set(app.app.aq.flows)


def test_a_limit_that_a_worker_has_nearly_met_is_shown(
    cell: Cell, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTQ_BROKER__URL", url)
    reporting(cell, "well")
    reporting(cell, "full", near="open files: 52 of 64 (RLIMIT_NOFILE)")
    shown = CliRunner().invoke(command, ["status"]).stdout.splitlines()
    told = "  limit of full nearly met: open files: 52 of 64 (RLIMIT_NOFILE)"
    assert [line for line in shown if line.startswith("  limit")] == [told]


def test_runs_are_counted_by_state(cell: Cell) -> None:
    for run in ("a", "b", "c"):
        cell.enqueue(message(run, run=run), run=run)
    cell.cancel("b")
    found = read_status(cell.store)
    assert (found.runs, found.runs_known) == ({"running": 2, "cancelled": 1}, 3)


def test_what_a_crash_may_cost_is_said(cell: Cell, breakable_server: Server) -> None:
    assert read_status(cell.store).broker.persistence == (
        "append-only file, fsync every second: a crash may lose two seconds"
    )
    durable = read_status(Cell(breakable_server.url).store).broker
    assert durable.persistence == "append-only file, fsync always: a crash loses nothing"
    breakable_server.client.config_set("appendonly", "no")
    careless = read_status(Cell(breakable_server.url).store).broker
    assert careless.persistence == "no append-only file: a restart loses what waits"


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["dead", "list"],
        ["resume", "pool", "shared"],
        ["purge", "--step", "x", "--yes"],
        ["plan"],
    ],
)
def test_a_command_without_an_app_imports_neither_celery_nor_what_comes_with_it(
    url: str, command: list[str]
) -> None:
    code = (
        "import sys; from agentq.cli.main import app; "
        "app(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        env=os.environ | {"AGENTQ_ENV": "test", "AGENTQ_BROKER__URL": url},
        check=True,
        capture_output=True,
        text=True,
        timeout=25,
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "agentq.settings.load" in loaded
    assert not loaded & {"celery", "kombu", "flower", "uvloop", "httpx2", "agentq.flows.app"}
