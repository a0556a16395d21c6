"""What `@aq.warm` declares is done when the worker is ready, and in whoever takes a place later."""

from __future__ import annotations

import time
from functools import partial

import pytest

from agentq import AgentQ
from agentq.errors import DefinitionError, RunFailed
from tests.support.ledger import Ledger
from tests.support.running import running


def test_a_worker_is_ready_when_its_warm_functions_have_run_and_so_is_each_process_later(
    url: str, ledger: Ledger
) -> None:
    settings = {"WORKER__WARM_TIMEOUT": "300ms", "WORKER__CPU_PROCESSES": "1"}
    with running("tests.support.apps.warming", url, ledger, **settings) as app:
        worker = app.worker()
        found = ledger.lines("warm")
        in_child = [line.split()[2] for line in found if line.startswith("warm child")]
        assert in_child, "the CPU process was warmed"
        assert set(found) - {f"warm child {pid}" for pid in in_child} == {
            "warm coroutine True",
            "warm function False",
            "warm fails",
            "warm endless",
        }
        assert "warm tests.support.apps.warming.fails failed: starting without it" in worker.log()
        assert "never_ends did not end within 300ms (worker.warm_timeout)" in worker.log()
        assert app.app.see.submit(0).result(timeout=15) == ["coroutine", "function"]
        pid, warmed = app.app.see_in_child.submit(0).result(timeout=15)
        assert str(pid) in in_child
        assert warmed == ["child"]

        with pytest.raises(RunFailed, match="WorkerLost"):
            app.app.die.submit(0).result(timeout=15)
        other, warmed = app.app.see_in_child.submit(1).result(timeout=15)
        assert other != pid
        assert warmed == ["child"]
        assert ledger.count(f"warm child {other}") == 1


async def _async() -> None: ...


def _with_argument(_: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (_with_argument, "worker", "it is called without arguments"),
        (_async, "cpu", 'is async: kind="cpu" needs a plain def'),
        (lambda: None, "cpu", "declare it in a module"),
        (time.time, "gpu", "kind 'gpu' is not worker or cpu"),
    ],
)
def test_what_can_not_warm_up_is_refused_where_it_is_declared(
    function: object, kind: str, text: str
) -> None:
    with pytest.raises(DefinitionError, match=text):
        partial(AgentQ("refusing").warm, kind=kind)()(function)  # type: ignore[type-var]
