"""Fixtures that start something; a unit test uses none of them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings

from tests.support.ledger import Ledger
from tests.support.redis_server import Server, private_server

settings.register_profile("fault", max_examples=2000)
"""The long form of what Hypothesis tries; `make fault` asks for it."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _killed_processes_leave_nothing() -> Iterator[None]:
    """Give what is started a folder of its own: what is killed can not clear away its files."""
    tempfile.gettempdir()  # decided now: it is not the folder of this process
    with tempfile.TemporaryDirectory(prefix="aqt-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder
        yield
    del os.environ["TMPDIR"]


@pytest.fixture(scope="session")
def session_server() -> Iterator[Server]:
    """One private server for all tests of the session."""
    with private_server() as server:
        yield server


@pytest.fixture
def breakable_server() -> Iterator[Server]:
    """A server of one test, which may break it: what it accepted survives that."""
    with private_server(appendfsync="always") as server:
        yield server


@pytest.fixture
def url(session_server: Server) -> str:
    """The address of a cell that no other test uses."""
    return f"{session_server.url}?cell={uuid4().hex[:12]}"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A file outside Redis in which steps note what they do."""
    return Ledger(tmp_path / "ledger")
