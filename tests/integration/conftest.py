"""Fixtures of the tests that run real workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import Server
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

APP = "tests.support.apps.canvas"


class Ledger:
    """What tasks did, one line each, in a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        """Return the lines in the order they were written."""
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []

    def count(self, line: str) -> int:
        """Return how often exactly this line stands there."""
        return self.lines().count(line)

    def clear(self) -> None:
        """Begin anew."""
        self.path.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def environment(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings of the session's apps: this process' and its workers'."""
    values = {
        "AGENTQ_BROKER__URL": session_server.url,
        "AGENTQ_WORKER__LEASE": "3s",
        "AQ_TEST_LEDGER": str(tmp_path_factory.mktemp("ledger") / "ledger"),
    }
    os.environ.update(values)
    return values


@pytest.fixture
def server(session_server: Server) -> Server:
    return session_server


@pytest.fixture
def ledger(environment: dict[str, str]) -> Iterator[Ledger]:
    found = Ledger(Path(environment["AQ_TEST_LEDGER"]))
    found.clear()
    yield found


KINDS = {"prefork": ("-P", "prefork", "-c", "2"), "agentq": ()}
"""Kinds of workers and the options that choose them."""


@pytest.fixture(scope="session", params=["prefork"])
def worker(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[WorkerProcess]:
    """A worker of each kind, for all tests of the session."""
    process = WorkerProcess(APP, options=KINDS[request.param], env=environment)
    process.start()
    yield process
    process.stop()
    process.close()


@pytest.fixture
def clean(server: Server) -> Iterator[None]:
    """Fail a test that leaves a message in a queue or a key without a time to live."""
    yield
    wait_until(lambda: not server.streams(), lambda: f"queues empty: {server.streams()}", 10)
    assert server.keys_left() == []
