"""Retries stay within the budget of their pool: those beyond it wait, and none is lost."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest

from agentq.store import calls, effects
from tests.support.cell import KEEP_MS, Cell, message
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.waiting import wait_until

WORKER = "w1"
PERCENT, LEAST = 20, 2
BURST = LEAST * 10
"""What a quiet pool may retry at once: what it may in ten seconds."""


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew(WORKER)
    cell.store.call(calls.promote(cell.prefix, 1, KEEP_MS, retries=f"{PERCENT} {LEAST}"))
    return cell


def fail(cell: Cell, count: int, *, retry: bool = True) -> None:
    cell.enqueue(*(message(uuid4().hex) for _ in range(count)))
    for one in cell.fetch(WORKER, count):
        cell.fail(one, after_ms=1, retry=retry)


def waits_s(cell: Cell, since_ms: int) -> list[float]:
    """Return after how many seconds each delayed message is due, the first one first."""
    found = cell.redis("ZRANGE", cell.keys.delayed(), 0, -1, "WITHSCORES")
    return [(float(score) - since_ms) / 1000 for _, score in found]


def test_the_first_retries_of_a_quiet_pool_are_not_held(cell: Cell) -> None:
    began = cell.now_ms()
    fail(cell, BURST)
    took = (cell.now_ms() - began) / 1000
    assert waits_s(cell, began)[-1] <= took + 0.01


def test_retries_beyond_the_budget_wait_one_behind_the_other_and_none_is_lost(cell: Cell) -> None:
    began = cell.now_ms()
    fail(cell, 100)
    waits = waits_s(cell, began)
    took = (cell.now_ms() - began) / 1000
    assert len(waits) == 100
    for seconds in range(1, 40):
        allowed = BURST + LEAST * (seconds + took)
        assert sum(wait <= seconds for wait in waits) <= allowed + 1, seconds
    assert waits[-1] <= (100 - BURST) / LEAST + took + 0.01


def test_a_busy_pool_may_retry_its_share_of_what_it_attempts(cell: Cell) -> None:
    fail(cell, 1)  # from here on its attempts are seen
    attempts = 900
    for _ in range(4):
        cell.enqueue(*(message(f"m{number}") for number in range(attempts)))
        for one in cell.fetch(WORKER, attempts):
            cell.complete(one)
    began = cell.now_ms()
    fail(cell, attempts)
    waits = waits_s(cell, began)
    assert len(waits) == attempts + 1
    longest = attempts / (4 * attempts * PERCENT / 100 / 10)  # a fifth of what it made in 10 s
    assert longest * 0.6 < waits[-1] < longest * 1.3


def test_what_is_handed_back_unstarted_is_no_retry(cell: Cell) -> None:
    began = cell.now_ms()
    fail(cell, BURST * 3, retry=False)
    assert waits_s(cell, began)[-1] <= (cell.now_ms() - began) / 1000 + 0.01


def test_celerys_own_retries_go_by_the_same_budget(cell: Cell) -> None:
    began = cell.now_ms()
    for number in range(BURST + 10):
        cell.enqueue(message(f"m{number}"))
    for one in cell.fetch(WORKER, BURST + 10):
        assert cell.complete(one, effects.again(message(one.id))) == "ok"
    waits = waits_s(cell, began)
    assert len(waits) == pytest.approx(10, abs=3)  # the others may start at once
    assert waits[-1] > 10 / LEAST - 2


def test_steps_and_tasks_that_fail_on_are_started_within_the_budget(
    url: str, ledger: Ledger
) -> None:
    """Each raises four times: without a budget there would be three retries for a first attempt."""
    settings = {"RETRY__PER_SECOND": str(LEAST), "WORKER__LEASE": "3s"}
    with running("tests.support.apps.failing", url, ledger, **settings) as app:
        worker = app.worker()
        for number in range(60):
            app.app.step_flow.submit(number)
            app.app.task.apply_async((number,))
        store = app.app.aq.store
        delayed = store.keys.delayed()
        wait_until(lambda: store.command("ZCARD", delayed) > 90, "most of the retries wait")
        began = Counter(line.split()[1] for line in ledger.lines("start "))
        assert began["0"] == 120
        # What a quiet pool may at once, then a fifth of its attempts or two a second.
        assert began.total() - 120 <= BURST + max(0.2 * began.total(), LEAST * 10)
        wait_until(lambda: "at their budget" in worker.log(), "it says so")


def test_a_retry_begins_behind_the_time_that_a_model_server_asked_for(
    url: str, ledger: Ledger
) -> None:
    with running("tests.support.apps.failing", url, ledger) as app:
        app.worker()
        assert app.app.asked_flow.submit(0.8).result(timeout=10) == 0.8
        first, second = (float(line.split()[1]) for line in ledger.lines("asked "))
        assert 0.8 <= second - first < 5
