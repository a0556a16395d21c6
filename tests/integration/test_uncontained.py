"""Whatever a step raises is its own outcome: it ends, and the worker goes on."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running

NAMES = ["odd", "generator exit", "group", "exit", "stop iteration"]


@pytest.fixture(scope="module")
def odd(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    ledger = Ledger(tmp_path_factory.mktemp("odd") / "ledger")
    with running("tests.support.apps.uncontained", url, ledger) as app:
        app.worker()
        yield app


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
def test_what_is_no_exception_ends_its_step(odd: Running, kind: str) -> None:
    run = odd.app.flows[kind].submit(NAMES)

    # Python itself turns a coroutine's StopIteration into a RuntimeError.
    last = "RuntimeError" if kind == "coroutine" else "StepAborted"
    assert run.result(timeout=15) == ["StepAborted"] * 4 + [last]


@pytest.mark.parametrize("task", ["plain", "plain_coroutine"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_exception_fails_its_task(odd: Running, task: str, name: str) -> None:
    result = getattr(odd.app, task).delay(name)

    result.get(timeout=15, propagate=False)

    assert result.state == "FAILURE"
