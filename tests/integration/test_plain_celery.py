"""A plain Celery app that only names our URL: what could not be run is a dead letter there too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from celery.exceptions import TaskRevokedError

from agentq.errors import WorkerLost
from agentq.ops.dead import Letter, Wanted, letters
from agentq.store.address import parse
from agentq.store.client import Store
from tests.support.ledger import Ledger
from tests.support.running import Running, running
from tests.support.waiting import wait_until

PREFORK = ("-P", "prefork", "-c", "2")


@pytest.fixture
def plain(url: str, ledger: Ledger) -> Iterator[Running]:
    with running("tests.support.apps.plain", url, ledger) as found:
        yield found


@pytest.fixture
def store(url: str) -> Store:
    return Store(address=parse(url), timeout=timedelta(seconds=5))


def kept(store: Store) -> list[Letter]:
    return list(letters(store, Wanted()))


def test_an_expired_task_is_one_letter(plain: Running, store: Store) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    results = [task.apply_async((1,), expires=past) for task in (plain.app.early, plain.app.late)]
    worker = plain.worker(options=PREFORK)
    for result in results:
        with pytest.raises(TaskRevokedError, match="expired"):
            result.get(timeout=10)
    assert plain.app.add.delay(1, 2).get(timeout=10) == 3
    wait_until(lambda: len(kept(store)) == 2, worker.log)
    assert {letter.task_id for letter in kept(store)} == {result.id for result in results}
    for letter in kept(store):
        assert letter.reason.startswith(f"expired: it was to start before {past:%Y-%m-%d}")
    assert plain.ledger.lines() == []


def test_a_task_that_ends_its_child_is_given_up_after_three(plain: Running, store: Store) -> None:
    results = {plain.app.dies.delay(how) for how in ("kill", "exit")}
    worker = plain.worker(options=PREFORK)
    wait_until(lambda: len(kept(store)) == 2, worker.log, 40)
    deaths = {letter.task_id: letter.attempts for letter in kept(store)}
    assert deaths == {result.id: 3 for result in results}
    for result in results:
        with pytest.raises(WorkerLost):
            result.get(timeout=10)
    assert plain.ledger.counts() == {"dies kill": 3, "dies exit": 3}
    assert plain.app.add.delay(1, 2).get(timeout=10) == 3
