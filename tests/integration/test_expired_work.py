"""What was not started in time: a plain task is kept as a letter, a run says it of itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery import chain
from celery.exceptions import TaskRevokedError

from agentq.errors import DeadlineExceeded
from agentq.ops.dead import Letter, Wanted, letters, replay
from tests.support.ledger import Ledger
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until

POOLS = {"ours": (), "prefork": ("-P", "prefork", "-c", "1")}


def past() -> datetime:
    return datetime.now(UTC) - timedelta(hours=1)


@pytest.mark.parametrize("options", POOLS.values(), ids=list(POOLS))
@pytest.mark.parametrize("task", ["early", "late"])
def test_an_expired_task_is_a_letter_once_and_runs_when_it_is_replayed(
    url: str, ledger: Ledger, options: tuple[str, ...], task: str
) -> None:
    with running("tests.support.apps.expiring", url, ledger) as app:
        store = app.app.aq.store
        result = getattr(app.app, task).apply_async((1,), expires=past())
        chained = chain(app.app.late.s(2).set(expires=past()), app.app.late.s()).delay()
        worker = app.worker(options=(*BOTH_POOLS, *options))
        wait_until(lambda: len(found(app)) == 2, worker.log)
        with pytest.raises(TaskRevokedError, match="expired"):
            result.get(timeout=10)
        with pytest.raises(TaskRevokedError):
            chained.get(timeout=10)
        assert ledger.lines() == []
        kept = {one.task_id: one for one in found(app)}
        assert kept.keys() == {result.id, chained.parent.id}
        letter = kept[result.id]
        assert letter.reason.startswith(f"expired: it was to start before {past():%Y-%m-%d}")
        assert (letter.task.rpartition(".")[2], letter.pool, letter.whole) == (task, "shared", True)
        assert replay(store, [letter.id]).moved == 1
        wait_until(lambda: ledger.lines() == ["ran 1"], worker.log)
        assert wait_until(lambda: app.app.app.AsyncResult(result.id).result == 1, worker.log)
        assert [one.task_id for one in found(app)] == [chained.parent.id]


def test_a_run_behind_its_deadline_says_so_itself_and_leaves_no_letter(
    url: str, ledger: Ledger
) -> None:
    with running("tests.support.apps.expiring", url, ledger) as app:
        runs = [app.app.aq.get_flow("fan").submit(20, deadline="1s") for _ in range(3)]
        app.worker(options=(*BOTH_POOLS, "-c", "5"))
        for run in runs:
            with pytest.raises(DeadlineExceeded):
                run.result(timeout=15)
            assert run.status().state == "expired"
        store = app.app.aq.store
        key = store.keys.stream("shared", "normal")
        wait_until(
            lambda: not store.command("XLEN", key), "what is left of them is ended unstarted"
        )
        assert found(app) == []


def found(app: Running) -> list[Letter]:
    return list(letters(app.app.aq.store, Wanted()))
