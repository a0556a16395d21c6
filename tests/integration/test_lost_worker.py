"""A dead process' work, handed back by whoever saw it end; and the signs of life before."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from agentq.host.supervisor import LeaseNote
from agentq.ops.lost_worker import found_dead, hand_back
from agentq.settings import load_settings
from agentq.store.address import parse
from agentq.store.client import Store
from agentq.timing.deadline import BrokerClock
from agentq.worker.leases import Lease
from tests.support.cell import Cell, message
from tests.support.waiting import wait_until

DEAD, OTHER = "shared-0@vm#1", "shared-0@vm#2"


@pytest.fixture
def cell(url: str) -> Cell:
    """A cell where the dead process holds a, b and c, and another one d."""
    cell = Cell(url)
    for worker, ids in ((DEAD, "abc"), (OTHER, "d")):
        cell.renew(worker, suspects=16)
        for id_ in ids:
            cell.enqueue(message(id_))
        assert len(cell.fetch(worker)) == len(ids)
    return cell


def handed(cell: Cell) -> list[tuple[str, int, int]]:
    return [(one.id, one.attempts, one.suspected) for one in cell.fetch(OTHER)]


def test_what_a_dead_process_held_is_handed_out_at_once_as_suspect_and_uncharged(
    cell: Cell,
) -> None:
    assert hand_back(cell.store, load_settings(), DEAD, suspects=True) == 3
    assert handed(cell) == [("a", 0, 1), ("b", 0, 1), ("c", 0, 1)]
    assert cell.redis("ZRANGE", cell.keys.workers(), 0, -1) == [OTHER.encode()]


def test_what_was_ended_on_purpose_left_no_suspects(cell: Cell) -> None:
    assert hand_back(cell.store, load_settings(), DEAD, suspects=False) == 3
    assert handed(cell) == [("a", 0, 0), ("b", 0, 0), ("c", 0, 0)]


@pytest.mark.parametrize("suspects", [True, False])
def test_again_nothing_is_handed_back_and_nobody_else_loses_anything(
    cell: Cell,
    suspects: bool,  # noqa: FBT001 -- pytest's
) -> None:
    hand_back(cell.store, load_settings(), DEAD, suspects=suspects)
    assert hand_back(cell.store, load_settings(), DEAD, suspects=suspects) == 0
    assert len(handed(cell)) == 3
    assert handed(cell) == []


def test_a_gap_in_which_nobody_reaped_is_no_reason_to_wait_for_the_lease(cell: Cell) -> None:
    cell.reap()
    cell.redis("SET", f"{cell.prefix}reap:last", cell.now_ms() - 60_000)
    assert hand_back(cell.store, load_settings(), DEAD, suspects=True) == 3


def test_more_than_one_call_hands_back_is_handed_back_whole(url: str) -> None:
    cell = Cell(url)
    cell.renew(DEAD)
    cell.renew(OTHER)
    for number in range(600):
        cell.enqueue(message(str(number)))
    while cell.fetch(DEAD, 500):
        pass
    assert hand_back(cell.store, load_settings(), DEAD, suspects=True) == 600


def test_who_finds_a_note_hands_back_what_it_names_and_says_so_once(
    cell: Cell, url: str, tmp_path: Path
) -> None:
    note = noted_by_another(tmp_path)
    settings = load_settings()
    said = found_dead(note, settings, url=url, suspects=True)
    assert said == f"{DEAD} is gone: 3 messages handed out again"
    assert len(handed(cell)) == 3
    assert found_dead(note, settings, url=url, suspects=True) == ""


def test_of_a_process_that_lives_nothing_is_handed_back(
    cell: Cell, url: str, tmp_path: Path
) -> None:
    note = LeaseNote(environ={"RUNTIME_DIRECTORY": str(tmp_path)})
    note.write(DEAD)
    said = found_dead(note, load_settings(), url=url, suspects=True)
    assert said == f"{DEAD} is not gone: process {os.getpid()} lives; nothing is handed back"
    assert handed(cell) == []
    assert note.read() == DEAD
    # Its id was given out again meanwhile.
    (tmp_path / "agentq-lease").write_text(f"{DEAD}\n{os.getpid()} 1")
    assert found_dead(note, load_settings(), url=url, suspects=True).endswith("handed out again")


def noted_by_another(folder: Path) -> LeaseNote:
    """Return the note of a process that has ended."""
    own = {**os.environ, "RUNTIME_DIRECTORY": str(folder)}
    writes = f"from agentq.host.supervisor import LeaseNote; LeaseNote().write({DEAD!r})"
    subprocess.run([sys.executable, "-c", writes], env=own, check=True)
    return LeaseNote(environ=own)


def test_a_broker_that_is_away_leaves_it_to_the_lease(tmp_path: Path) -> None:
    note = noted_by_another(tmp_path)
    nowhere = f"agentq+unix://{tmp_path}/nobody.sock"
    said = found_dead(note, load_settings(), url=nowhere, suspects=True)
    assert said.endswith(f"what {DEAD} held is free when its lease ends")


class Reporting:
    """What a lease says of its worker; broken, it ends the lease's thread."""

    def __init__(self) -> None:
        self.broken = False

    def __call__(self) -> bytes:
        if self.broken:
            raise MemoryError
        return b"{}"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_signs_of_life_stop_with_the_thread_that_renews_the_lease(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "n"))
        supervisor.settimeout(0)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        monkeypatch.setenv("WATCHDOG_USEC", "4000")
        report = Reporting()
        lease = Lease(
            store=Store(address=parse(url), timeout=timedelta(seconds=5)),
            worker=DEAD, lease=timedelta(milliseconds=300), hang_timeout=timedelta(seconds=10),
            clock=BrokerClock(), report=report, on_lost=lambda _: None,
        )  # fmt: skip

        def alive() -> bool:
            while heard(supervisor):
                pass
            time.sleep(0.002)  # the shortest pause between two signs
            lease.beat()
            return heard(supervisor) == b"WATCHDOG=1"

        lease.start()
        assert alive()
        report.broken = True
        wait_until(lambda: not alive(), "the dead thread is noticed", 5)
        lease.stop()
        assert alive(), "a lease that was stopped has nothing to renew: the loop takes a new one"
        lease.stop()


def test_a_slow_renewal_does_not_put_the_worker_ahead_of_the_brokers_clock(url: str) -> None:
    def slow_report() -> bytes:
        time.sleep(0.2)  # as a connection that is made first, or a busy core
        return b"{}"

    store, clock = Store(address=parse(url), timeout=timedelta(seconds=5)), BrokerClock()
    lease = Lease(
        store=store, worker=DEAD, lease=timedelta(seconds=15), hang_timeout=timedelta(seconds=10),
        clock=clock, report=slow_report, on_lost=lambda _: None,
    )  # fmt: skip
    lease.start()
    lease.stop()
    believed = clock.now_ms(time.monotonic())
    seconds, micros = store.command("TIME")
    assert believed <= int(seconds) * 1000 + int(micros) // 1000


def heard(supervisor: socket.socket) -> bytes:
    try:
        return supervisor.recv(100)
    except BlockingIOError:
        return b""
