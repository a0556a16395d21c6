"""`agentq metrics`: scraped over HTTP from a real cell, with and without workers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import pytest
from typer.testing import CliRunner

from agentq.cli.main import app as command_line
from agentq.ops import status
from agentq.ops.acl import Role, rules
from agentq.ops.metrics import page
from agentq.ops.pausing import Kind, pause
from agentq.store import calls
from tests.support.cell import Cell, message
from tests.support.ledger import Ledger
from tests.support.redis_server import Server, private_server
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.scraping import Scrape, scrape
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT

APP = "tests.support.apps.both"


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `agentq metrics` on a free port; yields its address."""
    own = [sys.executable, "-m", "agentq", "metrics", "--port", "0", *arguments]
    with subprocess.Popen(own, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


@pytest.fixture
def cell(url: str) -> Cell:
    return Cell(url)


@pytest.fixture
def app(url: str, ledger: Ledger) -> Iterator[Running]:
    with running(APP, url, ledger, BROKER__MAX_LENGTH="10", WORKER__LEASE="1500ms") as found:
        yield found


def told(app: Running) -> Scrape:
    return Scrape.of(page(app.app.aq).decode())


def test_it_serves_what_waits_while_no_worker_lives(cell: Cell, app: Running) -> None:
    cell.enqueue(*(message(f"m{n}", pool="shared") for n in range(4)))
    cell.enqueue(message("later", pool="shared", due=cell.now_ms() + 3_600_000))
    with served() as (address, process):
        assert address.startswith("http://127.0.0.1:")
        found = scrape(address)
        assert found.value("agentq_broker_up") == 1
        normal = {"pool": "shared", "lane": "normal"}
        assert found.value("agentq_queue_waiting", **normal) == 4
        assert found.value("agentq_queue_leased", **normal) == 0
        assert found.value("agentq_queue_delayed", **normal) == 1
        assert found.value("agentq_queue_fill_ratio", **normal) == 0.4
        age = found.value("agentq_queue_oldest_seconds", **normal)
        assert age is not None
        assert 0 <= age < 30
        assert found.value("agentq_queue_waiting", pool="critical", lane="high") == 0
        assert found.value("agentq_pool_workers", pool="shared") == 0
        assert found.value("agentq_workers", state="up") == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
    del app


def test_what_workers_hold_end_and_bury_is_counted(cell: Cell, app: Running) -> None:
    cell.renew("w", pools=["shared"])
    cell.enqueue(*(message(f"m{n}", pool="p") for n in range(3)))
    first, second, _ = cell.fetch("w", 3)
    cell.complete(first)
    cell.fail(second, after_ms=60_000)
    cell.bury(2)
    pause(cell.store, Kind.POOL, "shared")
    found = told(app)
    normal = {"pool": "p", "lane": "normal"}
    assert found.value("agentq_queue_leased", **normal) == 1
    assert found.value("agentq_queue_aside", **normal) == 1
    assert found.value("agentq_pool_completed_total", pool="p") == 1
    assert found.value("agentq_pool_retried_total", pool="p") == 1
    assert found.value("agentq_dead_letters") == 2
    assert found.value("agentq_dead_letters_added_total", **normal) == 2
    assert found.value("agentq_pool_paused", pool="shared") == 1
    assert found.value("agentq_paused_seconds", kind="pool", name="shared") is not None
    assert found.value("agentq_pool_workers", pool="shared") == 1
    cell.expire_lease("w")
    assert told(app).value("agentq_pool_workers", pool="shared") == 0
    assert told(app).value("agentq_workers", state="lost") == 1


def test_a_process_that_took_a_new_lease_is_told_once(cell: Cell, app: Running) -> None:
    for name in ("w#1", "w#2"):
        cell.renew(name, pools=["shared"])
    cell.expire_lease("w#1")
    found = told(app)
    assert (found.value("agentq_worker_slots", worker="w")) == 0
    assert found.value("agentq_workers", state="up") == 1


@pytest.mark.parametrize("kind", [(), ("-P", "prefork", "-c", "2")], ids=["ours", "prefork"])
def test_a_worker_tells_what_it_consumes(app: Running, kind: tuple[str, ...]) -> None:
    app.worker(options=(*BOTH_POOLS, "--without-mingle", *kind))
    for number in range(3):
        assert app.app.add.delay(number, 1).get(timeout=10) == number + 1

    def ended() -> Scrape | None:
        found = told(app)
        return found if found.value("agentq_worker_done_total", worker="w@test") == 3 else None

    found = wait_until(ended, "its next renewal tells", 20)
    assert found is not None
    assert found.value("agentq_worker_slots", worker="w@test") == (2 if kind else 1000)
    assert found.value("agentq_worker_stalled", worker="w@test") == 0
    assert found.value("agentq_worker_near_limit", worker="w@test") == 0
    assert found.value("agentq_pool_completed_total", pool="shared") == 3


def test_a_broker_that_is_away_is_told_and_comes_back(ledger: Ledger) -> None:
    with private_server() as server, running(APP, server.url, ledger), served() as (address, _):
        assert scrape(address).value("agentq_broker_up") == 1
        server.kill()
        away = scrape(address)
        assert (away.value("agentq_broker_up"), len(away.names)) == (0, 1)
        server.start()
        assert scrape(address).value("agentq_broker_up") == 1


def test_a_port_that_is_taken_is_named(app: Running) -> None:
    del app
    with served() as (address, _):
        port = address.rpartition(":")[2].partition("/")[0]
        second = subprocess.run(
            [sys.executable, "-m", "agentq", "metrics", "--port", port],
            cwd=ROOT, capture_output=True, text=True, timeout=25, check=False,
        )  # fmt: skip
    assert second.returncode == 1
    assert f"127.0.0.1:{port}: the port is in use" in second.stderr


def test_the_dashboards_user_may_scrape(ledger: Ledger) -> None:
    with private_server() as server:
        own = rules(Role.DASHBOARD, cell="main")
        server.client.execute_command("ACL", "SETUSER", "d", "reset", "on", ">secret", *own)
        own_url = server.url.replace("://", "://d:secret@")
        with running(APP, own_url.replace("d:", "nobody:"), ledger, DASHBOARD__BROKER_URL=own_url):
            found = CliRunner().invoke(command_line, ["metrics", "--once", "-A", APP])
            assert Scrape.of(found.output).value("agentq_broker_up") == 1
        refused = {entry["object"] for entry in server.client.acl_log()}
        assert refused <= {"client|setinfo"}  # the driver's greeting


# -- stalled --------------------------------------------------------------------------------------


@pytest.fixture
def limited() -> Iterator[Server]:
    """A server with a user *w* whose rights a test may take away."""
    with private_server() as server:
        server.client.execute_command("ACL", "SETUSER", "w", "on", ">w", "~*", "&*", "+@all")
        yield server


@pytest.mark.timeout(60)
def test_a_worker_that_renews_and_takes_nothing_is_stalled(
    limited: Server, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "STALLED_MS", 1_500)  # so long in this process only
    url = limited.url.replace("://", "://w:w@")
    with (
        running(APP, url, ledger, WORKER__LEASE="1500ms") as working,
        running(APP, limited.url, ledger) as app,
    ):
        worker = working.worker()
        assert app.app.add.delay(1, 2).get(timeout=10) == 3
        limited.client.execute_command("ACL", "SETUSER", "w", "-xreadgroup")  # it may still renew
        waiting = app.app.add.delay(3, 4)

        def state() -> str:
            [own] = status.read_status(app.app.aq.store).workers
            assert own.state != "lost", worker.log()
            return own.state

        wait_until(lambda: state() == "stalled", worker.log, 20)
        assert told(app).value("agentq_worker_stalled", worker="w@test") == 1
        assert told(app).value("agentq_pool_workers", pool="shared") == 0
        shown = CliRunner().invoke(command_line, ["status"]).output
        assert "stalled w@test has room and has taken nothing for" in shown
        limited.client.execute_command("ACL", "SETUSER", "w", "+xreadgroup")
        assert waiting.get(timeout=20) == 7
        wait_until(lambda: state() == "up", worker.log, 10)


def test_a_worker_that_warms_up_or_has_only_long_steps_is_not_stalled(
    url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "STALLED_MS", 500)
    settings = {"WARM_TIMEOUT": "1s", "LEASE": "600ms", "CPU_PROCESSES": "1", "SPARE": "0"}
    settings = {f"WORKER__{name}": value for name, value in settings.items()} | {
        "WORKER__SLOTS": "1"
    }
    with running("tests.support.apps.warming", url, ledger, **settings) as app:
        runs = [app.app.rest.submit(seconds) for seconds in (0.9, 0)]
        worker = app.new_worker()
        worker.start(wait=False)
        seen: set[tuple[str, int, int]] = set()

        def ended() -> bool:
            for one in status.read_status(app.app.aq.store).workers:
                seen.add((one.state, one.running, one.slots))
            return runs[-1].status().state == "done"

        wait_until(ended, worker.log, 25)
        assert seen == {("up", 0, 0), ("up", 1, 1)} | (seen & {("up", 0, 1)})


def test_a_worker_is_not_stalled_by_what_it_may_not_or_cannot_take(cell: Cell) -> None:
    """A pause, slots that are all taken, work that came a moment ago and lanes that it does not
    read are no fault of its own.
    """
    still = status.STALLED_MS + 1

    def report(**more: object) -> None:
        said = orjson.dumps({"pools": ["p"], "slots": 2, "still_ms": still, **more})
        cell.store.call(calls.renew(cell.prefix, "w", 60_000, first=True, report=said))

    def state() -> str:
        [own] = status.read_status(cell.store).workers
        return own.state

    old = f"{cell.now_ms() - still}-0"
    report()
    cell.enqueue(message("new"))
    assert state() == "up"
    cell.redis("DEL", cell.keys.stream("p", "normal"))
    cell.redis("XADD", cell.keys.stream("p", "normal"), old, "i", "old")
    assert state() == "stalled"
    report(running=2)
    assert state() == "up"
    report(still_ms=10)
    assert state() == "up"
    report(lanes=["high", "low"])
    assert state() == "up"
    report(lanes=["normal"])
    assert state() == "stalled"
    pause(cell.store, Kind.POOL, "p")
    assert state() == "up"
