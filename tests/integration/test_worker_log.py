"""What a worker's log says of a step that failed: the user's lines, and no library's chain."""

from __future__ import annotations

import re
import sys

import pytest

from agentq.errors import RunFailed
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.waiting import wait_until


def test_a_failed_step_is_told_in_few_lines(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.flows", url, ledger) as flows:
        worker = flows.worker()
        aq = flows.app.aq
        for name, argument in (("timed", 5), ("wrong", None)):
            with pytest.raises(RunFailed):
                aq.get_flow(name).submit(argument).result(timeout=20)
        wait_until(lambda: "InvalidResult: " in worker.log(), worker.log)
        _, timed, wrong = re.split(r".*: failed\n", worker.log())
        aq.store.close()

    if sys.version_info >= (3, 11, 7):  # asyncio of 3.11.2 does not say where it was
        assert timed.count("Traceback") == 2, "where it was, and what it means"
        assert "await asyncio.sleep(seconds)" in timed
    assert wrong.count("Traceback") == 1, "pydantic's own says no more"
