"""One worker for all tests of a module that only look at what flows do."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running


@pytest.fixture(scope="module")
def flows(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The app `tests.support.apps.flows` with a worker that has both pools."""
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    ledger = Ledger(tmp_path_factory.mktemp("flows") / "ledger")
    with running("tests.support.apps.flows", url, ledger) as app:
        app.worker()
        yield app
