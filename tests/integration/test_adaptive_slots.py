"""Slots that follow the load: few for steps that compute, many for those that wait."""

from __future__ import annotations

from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.waiting import wait_until

BURNING, WAITING = 40, 30
MOST = 100


def test_a_worker_takes_few_steps_that_compute_and_many_that_wait(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.burning", url, ledger, WORKER__SLOTS_MODE="adaptive") as app:
        worker = app.worker(options=("-Q", "critical,shared", "-c", str(MOST)))
        burning = [app.app.burns.submit(number) for number in range(BURNING)]
        assert [run.result(timeout=25) for run in burning] == [None] * BURNING
        at_once = max(int(line.split()[2]) for line in ledger.lines("burns"))
        assert at_once < BURNING, "all of them ran at once"

        waiting = [app.app.waits.submit(number) for number in range(WAITING)]
        wait_until(lambda: len(ledger.lines("waits")) == WAITING, worker.log, timeout=20)
        app.app.release_file().touch()
        assert [run.result(timeout=15) for run in waiting] == [None] * WAITING
        assert ledger.counts("waits") == {f"waits {number}": 1 for number in range(WAITING)}
        assert len({line.split()[1] for line in ledger.lines("burns")}) == BURNING
        assert len(ledger.lines("burns")) == BURNING
