"""A wall clock that is two hours off, of a worker or of a producer: a warning, and nothing else.

libfaketime lies to one process about the wall clock; its monotonic clock and the server's are true.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agentq.ops.status import read_status
from tests.support.command_line import home
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT, WorkerProcess

_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
pytestmark = pytest.mark.skipif(not _LIBRARIES, reason="apt-get install faketime")

TWO_HOURS_MS = 7_200_000
APP = "tests.support.apps.canvas"
WARNING = "this machine's clock is 7"


def off_by(shift: str) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(_LIBRARIES[0]),
        "FAKETIME": shift,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }


@pytest.fixture
def app(session_server: Server, ledger: Ledger) -> Iterator[Running]:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    with running("tests.support.apps.coroutines", url, ledger, WORKER__LEASE="2s") as found:
        yield found


@pytest.fixture
def kinds() -> dict[str, tuple[str, ...]]:
    return {"ours": (), "prefork": ("-P", "prefork", "-c", "2")}


@pytest.mark.parametrize("shift", ["+2h", "-2h"])
@pytest.mark.parametrize("kind", ["ours", "prefork"])
def test_a_worker_two_hours_off_runs_everything_once_and_on_time(
    app: Running, kinds: dict[str, tuple[str, ...]], kind: str, shift: str
) -> None:
    worker = WorkerProcess(
        "tests.support.apps.coroutines:app",
        options=("-n", "off@test", "-Q", "critical,shared", *kinds[kind]),
        env=app.variables | off_by(shift),
    )
    try:
        worker.start()
        tasks = app.app
        began = time.monotonic()
        delayed = tasks.sync_add.apply_async((1, 1), countdown=2)
        soon = [tasks.sync_add.apply_async((n, 1), expires=60) for n in range(20)]
        late = tasks.sync_add.apply_async((0, 0), countdown=1.5, expires=1)
        assert [one.get(timeout=15) for one in soon] == [n + 1 for n in range(20)]
        assert time.monotonic() - began < 2, "nothing waits for what is delayed"
        assert delayed.get(timeout=15) == 2
        assert 2 <= time.monotonic() - began < 4
        wait_until(lambda: late.state == "REVOKED", lambda: str(late.state))
        wait_until(lambda: _skews(app), "its skew is reported", timeout=10)
        [skew] = _skews(app)
        assert abs(abs(skew) - TWO_HOURS_MS) < 2000
        assert (skew > 0) is (shift == "+2h")
        lines = [line for line in ledger_of(app) if line.startswith("prerun")]
        assert len(lines) == len(set(lines)) == 21
        assert worker.log().count(WARNING) == 1
    finally:
        worker.close()


def test_status_shows_a_clock_that_is_off_beside_one_that_is_not(app: Running) -> None:
    app.worker("right", options=("-Q", "shared"))
    worker = WorkerProcess(
        "tests.support.apps.coroutines:app", options=("-n", "off@test", "-Q", "shared"),
        env=app.variables | off_by("+2h"),
    )  # fmt: skip
    try:
        worker.start()
        wait_until(lambda: _skews(app), "its skew is reported", timeout=10)
        with home() as user:
            shown = user.run("status", env=app.variables).stdout
    finally:
        worker.close()
    assert re.search(r"clock of off@test: 7(199|200) s ahead of the broker's", shown)
    assert "clock of right" not in shown


def test_a_producer_two_hours_off_warns_once_and_its_countdown_is_right(app: Running) -> None:
    app.worker(options=("-Q", "critical,shared"))
    began = time.monotonic()
    code = (
        "from tests.support.apps.coroutines import sync_add\n"
        "for n in range(3): sync_add.apply_async((n, 0), countdown=1)\n"
        "sync_add.delay(7, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **app.variables, **off_by("-2h")},
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    assert done.stderr.count("behind that of the broker") == 1
    wait_until(lambda: len(_done(app)) == 4, ledger_of(app).__repr__)
    assert time.monotonic() - began >= 1
    assert sorted(_done(app)) == ["0", "1", "2", "7"]


def _done(app: Running) -> list[str]:
    return [line.split()[-1] for line in ledger_of(app) if line.startswith("success")]


def ledger_of(app: Running) -> list[str]:
    return app.ledger.lines()


def _skews(app: Running) -> list[int]:
    return [
        worker.skew_ms
        for worker in read_status(app.app.aq.store).workers
        if abs(worker.skew_ms) > 5000
    ]
