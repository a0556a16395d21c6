"""Tasks that end their process under Celery's own pools: the guilty one is dead, the others end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from agentq.ops.dead import Letter, Wanted, letters
from tests.support.ledger import Ledger
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.timeout(120)

NEIGHBOURS = 5

Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def start(url: str, ledger: Ledger) -> Start:
    @contextmanager
    def started(seconds: float, *, limit: int = 3) -> Iterator[Running]:
        settings = {"WORKER__LEASE": "1s", "BROKER__DELIVERY_LIMIT": f"{limit}"}
        with running("tests.support.apps.poison", url, ledger, **settings) as app:
            app.variables["AQ_TEST_SECONDS"] = f"{seconds}"
            app.worker("reaper", options=("-Q", "critical"))
            yield app

    return started


def options(pool: str, processes: int) -> tuple[str, ...]:
    alone = ("--without-mingle", "--without-gossip")
    return (*BOTH_POOLS, "-P", pool, "-c", str(processes), *alone)


class Supervised:
    """A worker that is started again when it has died, as systemd would."""

    def __init__(self, app: Running, *words: str) -> None:
        self._app, self._words = app, words
        self.deaths = 0
        self.worker: WorkerProcess = app.worker("w", options=words)

    def until(self, happened: Callable[[], object], what: str, timeout: float = 60) -> None:
        def looked() -> object:
            if not self.worker.alive():
                self.deaths += 1
                self.worker = self._app.worker(f"w{self.deaths}", options=self._words)
            return happened()

        wait_until(looked, lambda: f"{what}\n{self.worker.log()[-3000:]}", timeout)


def found(app: Running) -> list[Letter]:
    return list(letters(app.app.aq.store, Wanted()))


def counted(ledger: Ledger, beginning: str) -> dict[str, int]:
    numbers = [line.split()[1] for line in ledger.lines(f"{beginning} ")]
    return {number: numbers.count(number) for number in numbers}


def once(count: int) -> dict[str, int]:
    return {str(number): 1 for number in range(count)}


def test_a_poison_under_prefork_is_dead_after_three_children_and_charges_nobody_else(
    start: Start, ledger: Ledger
) -> None:
    with start(0.6) as app:
        worker = app.worker("w", options=options("prefork", NEIGHBOURS + 1))
        results = [app.app.adds.delay(number) for number in range(NEIGHBOURS)]
        poison = app.app.kills.delay("kill")
        wait_until(lambda: found(app), worker.log, 30)
        assert [result.get(timeout=15) for result in results] == list(range(NEIGHBOURS))
        wait_until(lambda: poison.state == "FAILURE", worker.log)
        assert type(poison.result).__name__ == "WorkerLost"
        assert worker.alive()
        [letter] = found(app)
    assert (letter.task_id, letter.attempts) == (poison.id, 3)
    assert len(ledger.lines("poison")) == 3
    assert counted(ledger, "begin") == counted(ledger, "end") == once(NEIGHBOURS)


def test_whoever_kills_a_prefork_worker_does_not_charge_its_only_task(
    start: Start, ledger: Ledger
) -> None:
    with start(0.6, limit=1) as app:
        result = app.app.redelivered.delay(0)
        worker = app.worker("w", options=options("prefork", 1))
        wait_until(lambda: ledger.lines("begin"), worker.log)
        worker.kill()
        app.worker("next", options=options("prefork", 1))
        assert result.get(timeout=15) is True
        assert found(app) == []
    assert counted(ledger, "begin") == {"0": 2}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_step_is_told_that_it_is_the_attempt_after_a_death(
    start: Start, ledger: Ledger, pool: str
) -> None:
    with start(0.6) as app:
        run = app.app.single.submit(0)
        worker = app.worker("w", options=options(pool, 1))
        wait_until(lambda: ledger.lines("begin"), worker.log)
        worker.kill()
        app.worker("next", options=options(pool, 1))
        assert run.result(timeout=15) == 0
    assert [line.split()[3] for line in ledger.lines("begin")] == ["1", "2"]


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_poison_among_tasks_that_share_its_process_is_dead_and_they_are_not(
    start: Start, ledger: Ledger, pool: str
) -> None:
    with start(0.6, limit=1) as app:
        poison = app.app.kills.delay("kill")
        results = [app.app.adds.delay(number) for number in range(NEIGHBOURS)]
        # Solo holds as many as the threads do, of which it runs one.
        words = (*options(pool, NEIGHBOURS + 1), f"--prefetch-multiplier={NEIGHBOURS + 1}")
        supervised = Supervised(app, *words)
        supervised.until(lambda: found(app), "the poison is dead")
        supervised.until(lambda: all(result.ready() for result in results), "the others end")
        assert [result.get(timeout=1) for result in results] == list(range(NEIGHBOURS))
        [letter] = found(app)
        assert (letter.task_id, letter.attempts) == (poison.id, 1)
        print(f"{pool}: {supervised.deaths} deaths, {len(ledger.lines('begin'))} begins")
    assert len(ledger.lines("poison")) == 2  # beside the others, and alone
    assert counted(ledger, "end") == once(NEIGHBOURS)
