"""A key whose run was kept its time and is gone begins a new run, which nothing of the old one touches."""

from __future__ import annotations

from tests.support.cell import Cell
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.waiting import wait_until


def test_a_worker_that_heard_of_the_cancel_runs_the_next_run_of_the_key(
    url: str, ledger: Ledger
) -> None:
    with running("tests.support.apps.flows", url, ledger, RUNS__KEEP="1s") as app:
        worker = app.worker()
        flow, cell = app.app.aq.get_flow("sleeping"), Cell(url)
        cancelled = flow.submit(60.0, key="ticket")
        wait_until(lambda: ledger.lines(f"sleeper began {cancelled.id}"), worker.log)
        assert cancelled.cancel()
        wait_until(lambda: not cell.redis("EXISTS", cell.keys.run(cancelled.id)), "it is gone")
        again = flow.submit(0.0, key="ticket")
        assert (again.id, again.duplicate) == (cancelled.id, False)
        assert again.result(timeout=10) == 0
        assert len(ledger.lines(f"sleeper ended {again.id}")) == 1
