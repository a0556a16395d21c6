"""What a supervisor hears of this process."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq.host.supervisor import READY, LeaseNote, Watchdog, tell


class Listener:
    """The other side of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.link.bind(address.replace("@", "\0", 1))
        self.link.settimeout(0)
        self.environ = {"NOTIFY_SOCKET": address}

    def heard(self) -> list[str]:
        found = []
        try:
            while True:
                found.append(self.link.recv(4096).decode())
        except BlockingIOError:
            return found


@pytest.fixture(params=["file", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    address = str(tmp_path / "n") if request.param == "file" else f"@agentq-test-{os.getpid()}"
    found = Listener(address)
    yield found
    found.link.close()


def test_lines_go_to_the_supervisor_as_one_message(listener: Listener) -> None:
    assert tell(READY, "STATUS=ready", environ=listener.environ)
    assert listener.heard() == ["READY=1\nSTATUS=ready"]


def test_without_a_supervisor_or_with_one_that_is_gone_nothing_happens(tmp_path: Path) -> None:
    assert not tell(READY, environ={})
    assert not tell(READY, environ={"NOTIFY_SOCKET": str(tmp_path / "gone")})


def test_a_watched_process_gives_signs_while_it_moves_and_not_each_time(listener: Listener) -> None:
    watchdog = Watchdog(environ={**listener.environ, "WATCHDOG_USEC": "12000000"})
    assert watchdog.every_s == 1
    watchdog.feed(moves=False)
    assert listener.heard() == []
    for _ in range(100):
        watchdog.feed(moves=True)
    watchdog.close()
    assert listener.heard() == ["WATCHDOG=1"]


def test_a_process_that_has_no_file_left_gives_signs_all_the_same(listener: Listener) -> None:
    watchdog = Watchdog(environ={**listener.environ, "WATCHDOG_USEC": "4000"})
    watchdog.feed(moves=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4, hard))
    try:
        time.sleep(0.002)  # the shortest pause between two
        watchdog.feed(moves=True)
        told = tell(READY, environ=listener.environ)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    watchdog.close()
    assert not told
    assert listener.heard() == ["WATCHDOG=1"] * 2


def test_a_supervisor_that_begins_anew_hears_it_again(tmp_path: Path) -> None:
    address = str(tmp_path / "n")
    first = Listener(address)
    watchdog = Watchdog(environ={**first.environ, "WATCHDOG_USEC": "4000"})
    watchdog.feed(moves=True)
    first.link.close()
    Path(address).unlink()
    second = Listener(address)
    for _ in range(2):
        time.sleep(0.002)
        watchdog.feed(moves=True)
    watchdog.close()
    assert second.heard() == ["WATCHDOG=1"]
    second.link.close()


def test_a_short_limit_is_met_four_times(listener: Listener) -> None:
    watchdog = Watchdog(environ={**listener.environ, "WATCHDOG_USEC": "400000"})
    assert watchdog.every_s == 0.1


def test_who_is_not_watched_gives_no_signs(listener: Listener) -> None:
    other = {"WATCHDOG_USEC": "12000000", "WATCHDOG_PID": "1"}
    for variables in ({}, other):
        Watchdog(environ={**listener.environ, **variables}).feed(moves=True)
    assert listener.heard() == []


def test_the_note_has_the_lease_of_now_and_goes_with_it(tmp_path: Path) -> None:
    note = LeaseNote(environ={"RUNTIME_DIRECTORY": f"{tmp_path}:/run/other"})
    assert note.read() is None
    for worker in ("shared-0@vm#1", "shared-0@vm#2"):
        note.write(worker)
        assert note.read() == worker
    assert [path.name for path in tmp_path.iterdir()] == ["agentq-lease"]
    note.remove()
    note.remove()
    assert note.read() is None


def test_the_brokers_credential_is_kept_for_its_owner_as_long_as_the_note(tmp_path: Path) -> None:
    credentials, folder = tmp_path / "credentials", tmp_path / "run"
    for made in (credentials, folder):
        made.mkdir()
    (credentials / "agentq.broker.url").write_text("agentq://:hunter2@db")
    (credentials / "agentq.blobs.secret").write_text("not needed")
    own = {"RUNTIME_DIRECTORY": str(folder), "CREDENTIALS_DIRECTORY": str(credentials)}
    note = LeaseNote(environ=own)
    before = os.umask(0)
    try:
        note.write("shared-0@vm#1")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {"agentq-lease": 0o600, "agentq.broker.url": 0o600}
    assert (folder / "agentq.broker.url").read_text() == "agentq://:hunter2@db"
    note.remove()
    assert list(folder.iterdir()) == []


def test_without_a_folder_nothing_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    note = LeaseNote(environ={})
    note.write("shared-0@vm#1")
    assert note.read() is None
    assert list(tmp_path.iterdir()) == []
