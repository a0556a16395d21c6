"""A worker with one of Celery's pools, as its supervisor sees it: warm, alive, full, dead."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentq.host.process import descendants, pss_bytes, rss_bytes
from agentq.host.supervisor import LeaseNote
from agentq.ops.lost_worker import found_dead
from agentq.settings import load_settings
from tests.support.cell import Cell
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT

pytestmark = pytest.mark.timeout(40)

MODULE = "tests.support.apps.supervised"
WAIT = 15
LIMIT = 400
SLOTS = 2
SILENCE_US = 120_000
"""A sign of life is due each 30 ms."""


class Supervised:
    """One `agentq worker`, and what it tells the supervisor that this test is."""

    def __init__(self, app: Running, folder: Path, stack: ExitStack) -> None:
        self.app = app.app
        self.ledger = app.ledger
        self.folder = folder
        self._socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._socket.bind(str(folder / "notify"))
        self._heard: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        own = {"NOTIFY_SOCKET": str(folder / "notify"), "RUNTIME_DIRECTORY": str(folder)}
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentq", "worker", "--pool", "shared", "--slots", str(SLOTS),
                 "-A", f"{MODULE}:aq"],
                cwd=ROOT, env={**os.environ, **app.variables, **own, "WATCHDOG_USEC": str(SILENCE_US)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        stack.callback(self._end)
        self.release = app.app.beside_the_ledger("release")
        self.note = folder / "agentq-lease"
        self._await_ready()

    def _await_ready(self) -> None:
        wait_until(self.note.exists, self.log, WAIT)
        wait_until(lambda: "warming" in self.ledger.lines(), self.log, WAIT)
        time.sleep(0.2)  # what is asserted is that nothing happens
        assert not self.said("READY=1")
        self.app.beside_the_ledger("connected").touch()
        wait_until(lambda: self.said("READY=1"), self.log, WAIT)

    def _end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def log(self) -> str:
        return self._log.read_text()

    def said(self, line: str) -> bool:
        """Whether it has said *line* by now."""
        return line in self._heard

    def lives(self) -> None:
        """Wait for the next sign of life."""
        self._heard.clear()
        wait_until(lambda: self.said("WATCHDOG=1"), self.log, 5)

    def is_silent(self) -> None:
        """Give it time for many signs of life and see none."""
        time.sleep(0.1)  # one may be under way
        self._heard.clear()
        time.sleep(0.25)  # what is asserted is that nothing happens
        assert not self.said("WATCHDOG=1")

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                self._heard += self._socket.recv(1000).decode().splitlines()


@pytest.fixture
def supervised(ledger: Ledger, tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    with ExitStack() as stack:

        def start(pool: str, url: str, **settings: str) -> Supervised:
            own = {"WORKER__STOCK_POOL": pool, "POOLS__SHARED__ALLOCATOR": "glibc", **settings}
            app = stack.enter_context(running(MODULE, url, ledger, **own))
            return Supervised(app, tmp_path, stack)

        yield start


def warm(ledger: Ledger) -> dict[str, list[tuple[int, str]]]:
    """Return process and thread of each warm function that ran."""
    found: dict[str, list[tuple[int, str]]] = {"coroutine": [], "function": []}
    for line in ledger.lines("warm "):
        _, kind, pid, ident = line.split()
        found[kind].append((int(pid), ident))
    return found


def held(worker: Supervised, megabytes: int = 1) -> tuple[Any, int]:
    """Have a step hold memory until it is told; return its run and its process."""
    before = len(worker.ledger.lines("holds"))
    run = worker.app.holding.submit(megabytes)
    lines = wait_until(
        lambda: len(found := worker.ledger.lines("holds")) > before and found, worker.log, WAIT
    )
    return run, int(lines[-1].split()[1])


def check_hand_back(worker: Supervised, url: str, *, attempts: int, suspected: int) -> None:
    """Kill it with a step at work: that is another's at once, and nothing of it runs any more."""
    _, at_work = held(worker)
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait()
    wait_until(lambda: not Path(f"/proc/{at_work}/exe").exists(), "the step's process ended", 2)
    note = LeaseNote(environ={"RUNTIME_DIRECTORY": str(worker.folder)})
    said = found_dead(note, load_settings(), url=url, suspects=True)
    assert said.endswith("is gone: 1 messages handed out again")
    cell = Cell(url)
    cell.renew("other", suspects=1)
    [handed] = cell.fetch("other", pool="shared")
    assert (handed.attempts, handed.suspected) == (attempts, suspected)


def block_the_loop(worker: Supervised) -> None:
    worker.lives()
    worker.app.app.control.broadcast("stand_still", arguments={"seconds": 0.6})
    wait_until(lambda: worker.ledger.count("still") == 1, worker.log)
    worker.is_silent()
    worker.lives()


def test_prefork_is_ready_when_its_children_are_warm_and_is_watched_bounded_and_handed_back(
    supervised: Any, url: str, ledger: Ledger
) -> None:
    worker = supervised("prefork", url, POOLS__SHARED__MEMORY=str(LIMIT << 20))
    children = set(descendants(worker.process.pid))
    assert len(children) == SLOTS
    for places in warm(ledger).values():
        assert sorted(pid for pid, _ in places) == sorted(children)
    block_the_loop(worker)
    check_that_it_takes_no_work_while_children_fill_its_memory(worker)

    killed = children.pop()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(warm(ledger)["function"]) == SLOTS + 1, worker.log, WAIT)
    [new] = {pid for pid, _ in warm(ledger)["function"]} - children - {killed}
    assert new in descendants(worker.process.pid)
    check_hand_back(worker, url, attempts=0, suspected=1)


def check_that_it_takes_no_work_while_children_fill_its_memory(worker: Supervised) -> None:
    pid, ledger = worker.process.pid, worker.ledger
    used = rss_bytes(pid) + sum(map(pss_bytes, descendants(pid)))
    holds, _ = held(worker, megabytes=int(0.9 * LIMIT - used / 2**20))
    wait_until(lambda: "taking no more work until" in worker.log(), worker.log)
    run = worker.app.smalls.submit(0)
    time.sleep(0.5)  # what is asserted is that nothing happens
    assert ledger.lines("small") == []
    worker.release.touch()
    assert run.result(timeout=WAIT)
    assert sorted(holds.result(timeout=WAIT)) == ["coroutine", "function"]
    worker.release.unlink()


def test_threads_are_warm_each_for_its_coroutines_and_live_while_the_broker_is_away(
    supervised: Any, breakable_server: Server, ledger: Ledger
) -> None:
    worker = supervised("threads", breakable_server.url)
    found = warm(ledger)
    assert {pid for places in found.values() for pid, _ in places} == {worker.process.pid}
    assert len({thread for _, thread in found["coroutine"]}) == SLOTS
    assert [len(places) for places in found.values()] == [SLOTS, 1]
    worker.lives()

    breakable_server.kill()
    wait_until(lambda: "Trying again in" in worker.log(), worker.log)
    worker.lives()  # though Celery's loop sleeps
    breakable_server.start()
    check_hand_back(
        worker, breakable_server.url, attempts=1, suspected=0
    )  # alone: it is what it died of


def test_solo_lives_while_a_task_runs_in_place_of_its_loop_and_not_when_it_is_stopped(
    supervised: Any, url: str, ledger: Ledger
) -> None:
    worker = supervised("solo", url)
    assert [len(places) for places in warm(ledger).values()] == [1, 1]
    worker.process.send_signal(signal.SIGSTOP)
    worker.is_silent()
    worker.process.send_signal(signal.SIGCONT)
    held(worker)
    time.sleep(SILENCE_US / 1e6)
    worker.lives()

    assert worker.note.exists()
    worker.process.terminate()
    worker.release.touch()
    assert worker.process.wait(WAIT) == 0, worker.log()
    assert worker.said("STOPPING=1")
    assert not worker.note.exists(), "nothing is held any more"
