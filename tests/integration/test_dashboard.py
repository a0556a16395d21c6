"""Flower over a real cell with a real worker, asked over HTTP and looked at in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT

pytest.importorskip("flower", reason="the dashboard's extra")
pytestmark = pytest.mark.timeout(60)

_APP = "tests.support.apps.flows"
_LOGIN = "ada:difference"
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_POOLS = {"critical", "shared"}
_CELL = re.compile("<td.*?</td>", re.DOTALL)
_LANES = ("high", "normal", "long", "low")


class Pages:
    """A running dashboard."""

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address = address
        self.process = process

    def get(self, path: str, *, method: str = "GET", login: str = _LOGIN) -> str:
        """Return the body of one answer."""
        request = urllib.request.Request(self.address + path.lstrip("/"), method=method)  # noqa: S310
        if login:
            token = b64encode(login.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 -- loopback
            return str(answer.read().decode())

    def read(self, path: str) -> Any:
        """Return one answer of the API."""
        return json.loads(self.get(path))

    def status(self, path: str, **options: str) -> int:
        """Return the status of one answer."""
        try:
            self.get(path, **options)
        except urllib.error.HTTPError as error:
            return error.code
        return 200


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", f"{_APP}:app", "agentq", *arguments]


@contextmanager
def dashboard(*arguments: str, login: str = _LOGIN, **variables: str) -> Iterator[Pages]:
    """Run `celery -A app agentq` on a free port of loopback until the test ends."""
    env = {**os.environ, "FLOWER_BASIC_AUTH": login, **variables}
    if not login:
        del env["FLOWER_BASIC_AUTH"]
    with subprocess.Popen(
        command("--port=0", *arguments), cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            yield Pages(process.stdout.readline().strip(), process)
        finally:
            process.kill()


@pytest.fixture
def cell(url: str, ledger: Ledger) -> Iterator[Running]:
    """A cell of the test's own, with no worker."""
    with running(_APP, url, ledger) as app:
        yield app


@pytest.fixture(scope="module")
def watched(
    session_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, Pages]]:
    """A dashboard that was there before its worker."""
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    with (
        running(_APP, url, Ledger(tmp_path_factory.mktemp("watched") / "ledger")) as app,
        dashboard() as pages,
    ):
        wait_until(lambda: pages.get("/healthcheck") == "OK", "dashboard up")
        app.worker()
        yield app, pages


def table(html: str, name: str) -> str:
    return html.split(f'id="{name}"')[1].partition("</table>")[0]


def rows(html: str, name: str) -> dict[str, list[str]]:
    """Return the cells of each row of one table, by the row's id."""
    found = re.findall(r'<tr id="([^"]+)">(.*?)</tr>', table(html, name), re.DOTALL)
    return {
        row: [re.sub("<[^>]+>", "", cell).strip() for cell in re.findall(_CELL, text)]
        for row, text in found
    }


def tasks_of(pages: Pages, run_id: str) -> dict[str, dict[str, Any]]:
    tasks = pages.read("/api/tasks")
    return {name: task for name, task in tasks.items() if name.startswith(run_id)}


def finished(pages: Pages, run_id: str, count: int) -> dict[str, dict[str, Any]]:
    """Wait until *count* steps of a run have ended; return them."""

    def ended() -> dict[str, dict[str, Any]] | None:
        found = tasks_of(pages, run_id)
        over = [task for task in found.values() if task["state"] in {"SUCCESS", "FAILURE"}]
        return found if len(over) == count else None

    return wait_until(ended, lambda: f"{count} steps: {tasks_of(pages, run_id)}") or {}


def test_steps_are_shown_with_state_run_time_and_shortened_arguments(
    watched: tuple[Running, Pages],
) -> None:
    app, pages = watched
    run = app.app.narrow.submit(app.app.Brief(n=3, bad=[1]))
    run.result(timeout=15)
    found = finished(pages, run.id, 5)
    states = {(task["name"].rpartition(".")[2], task["state"]) for task in found.values()}
    assert states == {
        ("plan", "SUCCESS"), ("execute", "SUCCESS"), ("execute", "FAILURE"), ("review", "SUCCESS"),
    }  # fmt: skip
    for task in found.values():
        assert task["received"] <= task["started"]
        assert task["worker"] == "w@test"
        if task["state"] == "SUCCESS":
            assert 0 < task["runtime"] < 5
        else:
            assert task["exception"] == "ValueError('task 1 is bad')"
            assert task["traceback"].endswith("ValueError: task 1 is bad\n")
    plan = found[f"{run.id}:0"]
    assert (plan["args"], plan["kwargs"]) == ('[{"n":3,"bad":[1]}]', "{}")
    assert plan["routing_key"] == "critical"


def test_a_retried_step_is_shown_as_such_and_then_as_done(watched: tuple[Running, Pages]) -> None:
    app, pages = watched
    run = app.app.retried.submit(1)
    assert run.result(timeout=15) == 2
    (task,) = finished(pages, run.id, 1).values()
    assert task["retried"] < task["succeeded"]
    assert task["retries"] == 1


def test_a_worker_that_came_later_is_shown_with_pool_queues_and_stats(cell: Running) -> None:
    with dashboard() as pages:
        wait_until(lambda: pages.get("/healthcheck") == "OK", "dashboard up")
        cell.worker("late")

        def known() -> dict[str, Any] | None:
            answer: dict[str, Any] = pages.read("/api/workers").get("late@test", {})
            return answer if {"active_queues", "stats"} <= answer.keys() else None

        worker = wait_until(known, "Flower asks again by itself", timeout=25) or {}
        assert {queue["name"] for queue in worker["active_queues"]} == _POOLS
        assert worker["stats"]["pool"]["max-concurrency"] == 1000
        assert len(worker["stats"]["pool"]["processes"]) == 1
        assert worker["stats"]["broker"]["transport"] == "agentq"
        page = pages.get("/worker/late@test")
        assert "agentq asyncio loop" in page.lower()  # Flower capitalises it
        overview = pages.read("/workers?json=1")["data"]
        assert [(one["hostname"], one["status"]) for one in overview] == [("late@test", True)]


def test_our_page_lists_lanes_workers_and_runs(watched: tuple[Running, Pages]) -> None:
    app, pages = watched
    run = app.app.narrow.submit(app.app.Brief(n=1))
    run.result(timeout=15)
    html = pages.get("/agentq")
    assert set(rows(html, "agentq-queues")) == {
        f"{pool}:{lane}" for pool in _POOLS for lane in _LANES
    }
    assert "w@test" in table(html, "agentq-workers")
    last = table(html, "agentq-runs")
    assert run.id in last
    assert "done" in last
    assert 'href="/agentq"' in pages.get("/tasks")


def test_queues_are_shown_with_their_depths_while_no_worker_is_alive(cell: Running) -> None:
    cell.app.narrow.submit_many([cell.app.Brief(n=1)] * 3)
    cell.app.execute.apply_async(({"number": 1},), countdown=600)
    with dashboard() as pages:
        found = rows(pages.get("/broker"), "queue-table")
        assert set(found) == {
            *(f"{pool}%3A{lane}" for pool in _POOLS for lane in _LANES), "delayed+%28all+pools%29",
        }  # fmt: skip
        assert found["critical%3Anormal"][:5] == ["critical:normal", "3", "0", "3", "0"]
        assert found["delayed+%28all+pools%29"][1] == "1"
        lengths = pages.read("/api/queues/length")["active_queues"]
        assert {queue["name"]: queue["messages"] for queue in lengths} == {
            "critical": 3, "shared": 0,
        }  # fmt: skip


def test_a_port_in_use_is_named_with_the_setting_that_changes_it(cell: Running) -> None:
    del cell
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command(f"--port={port}"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=25,
            check=False,
        )
    assert done.returncode == 1
    assert f"port {port} is in use" in done.stderr
    assert "dashboard.port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--address=0.0.0.0",), "dashboard.host '0.0.0.0' would show all runs"),
        (("--control",), "control of workers needs a login"),
    ],
)
def test_what_needs_a_login_is_refused_without_one(
    cell: Running, arguments: tuple[str, ...], said: str
) -> None:
    del cell
    done = subprocess.run(
        command("--port=0", *arguments),
        cwd=ROOT, capture_output=True, text=True, timeout=25, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert said in done.stderr
    assert "FLOWER_BASIC_AUTH" in done.stderr


def test_a_running_step_is_shown_as_active(watched: tuple[Running, Pages]) -> None:
    app, pages = watched
    run = app.app.sleeping.submit(30)

    def active() -> Any:
        answer = pages.read("/api/workers?refresh=1&workername=w@test")
        return answer["w@test"].get("active")

    (task,) = wait_until(active, "the step is active", timeout=20)
    assert (task["id"], task["args"]) == (f"{run.id}:0", "[30.0]")
    wait_until(
        lambda: [one["active"] for one in pages.read("/workers?json=1")["data"]] == [1],
        "the heartbeat counts it",
    )
    run.cancel()


def test_its_metrics_are_flowers_and_the_cells(watched: tuple[Running, Pages]) -> None:
    _, pages = watched
    told = pages.get("/metrics")
    assert "flower_worker_online" in told
    assert 'agentq_queue_waiting{lane="high",pool="critical"}' in told


def test_read_only_refuses_to_shut_a_worker_down(watched: tuple[Running, Pages]) -> None:
    _, pages = watched
    assert pages.status("/api/worker/shutdown/w@test", method="POST") == 403
    assert pages.status("/agentq", login="ada:wrong") == 401
    assert pages.status("/metrics", login="") == 401


def test_with_control_a_worker_is_shut_down_and_drains(cell: Running) -> None:
    worker = cell.worker("leaving")
    with dashboard("--control") as pages:
        wait_until(lambda: "leaving@test" in pages.read("/api/workers?refresh=1"), "worker known")
        assert pages.status("/api/worker/shutdown/leaving@test", method="POST") == 200
        assert worker.wait_ended() == 0


def test_a_broker_that_is_away_is_said_in_one_line(
    breakable_server: Server, tmp_path: Path
) -> None:
    with (
        running(_APP, breakable_server.url, Ledger(tmp_path / "ledger")),
        dashboard() as pages,
    ):
        assert pages.status("/agentq") == 200
        breakable_server.kill()
        assert pages.status("/agentq") == 503


def test_sigterm_ends_it_in_order(cell: Running) -> None:
    del cell
    own = [sys.executable, "-m", "agentq", "dashboard", "-A", f"{_APP}:aq", "--port", "0"]
    with subprocess.Popen(own, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pages = Pages(process.stdout.readline().strip(), process)
        assert pages.address.startswith("http://127.0.0.1:")
        assert pages.status("/agentq", login="") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_behind_a_prefix_our_pages_move_with_flowers(cell: Running) -> None:
    del cell
    with dashboard("--url_prefix=flower") as pages:
        assert pages.address.endswith("/flower/")
        assert 'href="/flower/agentq"' in pages.get("/broker")
        assert pages.status("/agentq") == 200


@pytest.mark.skipif(not _CHROMIUM, reason="apt install chromium")
@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("", "w@test"),
        ("tasks", "tests.support.apps.flows.review"),
        ("broker", "critical:normal"),
        ("agentq", "w@test"),
    ],
)
def test_a_browser_shows_the_page(
    watched: tuple[Running, Pages], tmp_path: Path, path: str, shown: str
) -> None:
    app, pages = watched
    run = app.app.narrow.submit(app.app.Brief(n=1))
    run.result(timeout=15)
    finished(pages, run.id, 3)
    assert _CHROMIUM
    address = pages.address.replace("//", f"//{_LOGIN}@") + path
    done = subprocess.run(
        [
            _CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--enable-logging=stderr", f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=3000", "--dump-dom", address,
        ],
        capture_output=True, text=True, timeout=40, check=True,
    )  # fmt: skip
    tables = re.findall("<tbody.*?</tbody>", done.stdout, re.DOTALL)
    assert any(shown in found for found in tables), done.stdout[-3000:]
    assert "Uncaught" not in done.stderr
