"""Retries stay within the budget of their pool: those beyond it wait, and none is lost."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest

from agentq.ops.why import explain
from agentq.store import calls, effects
from tests.support.cell import KEEP_MS, Cell, message
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.waiting import wait_until

WORKER = "w1"
PERCENT, LEAST = 20, 2
BURST = LEAST * 10
"""What a quiet pool may retry at once: what it may in ten seconds."""
COST = 1 - PERCENT / 100
"""Of a token, where each attempt that brings a share of one is followed by a retry."""


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
    began, failed = cell.now_ms(), 100
    fail(cell, failed)
    waits = waits_s(cell, began)
    took = (cell.now_ms() - began) / 1000
    assert len(waits) == failed
    for seconds in range(1, 40):
        allowed = (BURST + LEAST * (seconds + took)) / COST
        assert sum(wait <= seconds for wait in waits) <= allowed + 1, seconds
    assert waits[-1] == pytest.approx((failed * COST - BURST) / LEAST, abs=took + 3)


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
    made = 5 * attempts
    held = attempts - BURST - made * PERCENT / 100
    assert held < 0
    assert waits[-1] <= (cell.now_ms() - began) / 1000 + 0.01  # within its share: none is held


def test_a_busy_pool_is_held_to_its_share(cell: Cell) -> None:
    fail(cell, 1)
    began, failed = cell.now_ms(), 900
    fail(cell, failed)
    waits = waits_s(cell, began)
    rate = failed * PERCENT / 100 / 10
    assert waits[-1] == pytest.approx((failed * COST - BURST) / rate, rel=0.2)


def test_what_is_handed_back_unstarted_is_no_retry(cell: Cell) -> None:
    began = cell.now_ms()
    fail(cell, BURST * 3, retry=False)
    assert waits_s(cell, began)[-1] <= (cell.now_ms() - began) / 1000 + 0.01


def test_celerys_own_retries_go_by_the_same_budget(cell: Cell) -> None:
    began = cell.now_ms()
    retried = BURST * 2
    for number in range(retried):
        cell.enqueue(message(f"m{number}"))
    for one in cell.fetch(WORKER, retried):
        assert cell.complete(one, effects.again(message(one.id))) == "ok"
    waits = waits_s(cell, began)
    assert len(waits) == pytest.approx(retried - BURST / COST, abs=4)  # the others start at once
    assert waits[-1] > (retried * COST - BURST) / LEAST - 2


def test_steps_and_tasks_that_fail_on_are_started_within_the_budget(
    url: str, ledger: Ledger
) -> None:
    """Each raises four times: without a budget there would be three retries for a first attempt."""
    settings = {"RETRY__PER_SECOND": str(LEAST), "WORKER__LEASE": "3s"}
    with running("tests.support.apps.failing", url, ledger, **settings) as app:
        worker = app.worker()
        store = app.app.aq.store
        noted = f"{store.keys.prefix}retries"
        wait_until(lambda: store.command("EXISTS", noted), "the settings are known")
        for number in range(60):
            app.app.step_flow.submit(number)
            app.app.task.apply_async((number,))
        delayed = store.keys.delayed()
        wait_until(lambda: store.command("ZCARD", delayed) > 60, "most of the retries wait")

        def starts() -> Counter[str]:
            return Counter(line.split()[1] for line in ledger.lines("start "))

        wait_until(lambda: starts()["0"] == 120, "each has been tried")
        began = starts()
        # What a quiet pool may at once, then a fifth of its attempts.
        assert began.total() - 120 <= BURST + 0.2 * began.total() + LEAST * 5
        wait_until(lambda: "at their budget" in worker.log(), "it says so")
        last = explain(app.app.aq, app.app.step_flow.submit(60).id)
        wait_until(
            lambda: "budget (retry.budget)" in str(explain(app.app.aq, last.run).waits), "why tells"
        )


def test_a_retry_begins_behind_the_time_that_a_model_server_asked_for(
    url: str, ledger: Ledger
) -> None:
    with running("tests.support.apps.failing", url, ledger) as app:
        app.worker()
        assert app.app.asked_flow.submit(0.8).result(timeout=10) == 0.8
        first, second = (float(line.split()[1]) for line in ledger.lines("asked "))
        assert 0.8 <= second - first < 5


EARLIER = """
local b = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'b'))
b[1] = b[1] - ARGV[1]
redis.call('HSET', KEYS[1], 'b', cmsgpack.pack(b))
return tostring(b[2])
"""
"""Moves a bucket's last use back by so many ms; answers its tokens."""


def test_a_debt_is_paid_by_all_the_time_that_has_passed(cell: Cell) -> None:
    fail(cell, 10 * BURST)
    assert waits_s(cell, cell.now_ms())[-1] > 1
    cell.redis("DEL", cell.keys.delayed(), f"{cell.prefix}delayed:m")
    quiet_ms = 1000 * (10 * BURST // LEAST)
    assert float(cell.redis("EVAL", EARLIER, 1, f"{cell.prefix}load:p", quiet_ms)) < 0
    fail(cell, BURST // 2)
    assert waits_s(cell, cell.now_ms())[-1] <= 1
