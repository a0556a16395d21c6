"""Retries stay within the budget of their pool: those beyond it wait, and none is lost."""

from __future__ import annotations

import re
from collections import Counter
from uuid import uuid4

import pytest

from agentq.ops.why import explain
from agentq.store import calls, effects
from tests.support.cell import KEEP_MS, Cell, message
from tests.support.command_line import home
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.waiting import wait_until

WORKER = "w1"
PERCENT, LEAST = 20, 2
BURST = LEAST * 10
"""What a quiet pool may retry at once: what it may in ten seconds."""
SHARE = PERCENT / 100
WINDOW_S = 10
LATER = """
local b = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'b'))
b[1] = b[1] - ARGV[1]
redis.call('HSET', KEYS[1], 'b', cmsgpack.pack(b))
for k = 2, 4 do
  for _, member in ipairs(redis.call('ZRANGE', KEYS[k], 0, -1)) do
    redis.call('ZINCRBY', KEYS[k], -ARGV[1], member)
  end
end
"""
"""Lets so many ms pass: for a bucket, what is delayed, and when tokens are looked for."""


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew(WORKER)
    promote(cell)
    cell.fill_bucket(BURST)
    return cell


def promote(cell: Cell, most: int = 500) -> tuple[int, int]:
    """Sweep once; return how many messages were moved, and in how many ms to come back."""
    call = calls.promote(cell.prefix, most, KEEP_MS, retries=f"{PERCENT} {LEAST}")
    moved, _, due = cell.store.call(call)
    return moved, due - cell.now_ms() if due else 0


def fail(cell: Cell, count: int, *, retry: bool = True, after_ms: int = 1) -> list[str]:
    """Let *count* attempts fail; return their ids. Their retries are due one behind the other."""
    cell.enqueue(*(message(uuid4().hex) for _ in range(count)), limit=1_000_000)
    failed = cell.fetch(WORKER, count)
    for number, one in enumerate(failed):
        cell.fail(one, after_ms=after_ms + number, retry=retry)
    return [one.id for one in failed]


def succeed(cell: Cell, count: int) -> None:
    cell.enqueue(*(message(uuid4().hex) for _ in range(count)))
    for one in cell.fetch(WORKER, count):
        cell.complete(one)


def pass_s(cell: Cell, seconds: float) -> None:
    """Let time pass for the budget, and for what is delayed."""
    waiting = (cell.keys.delayed(), cell.keys.retries("p"), cell.keys.retrying())
    cell.redis("EVAL", LATER, 4, f"{cell.prefix}load:p", *waiting, int(seconds * 1000))


def queued(cell: Cell) -> int:
    return sum(
        cell.redis("XLEN", key("p", "normal")) for key in (cell.keys.stream, cell.keys.returned)
    )


def started(cell: Cell, seconds: float = 0) -> int:
    """Let time pass and sweep as workers do; return how many retries are started by that."""
    if seconds:
        pass_s(cell, seconds)
    before = queued(cell)
    while promote(cell)[0] >= 500:
        pass
    return queued(cell) - before


def waiting(cell: Cell) -> int:
    """Return how many retries are due and wait for the budget."""
    return int(cell.redis("ZCARD", cell.keys.retries("p")))


def test_the_first_retries_of_a_quiet_pool_are_not_held(cell: Cell) -> None:
    fail(cell, BURST)
    assert (started(cell, 1), waiting(cell)) == (BURST, 0)


def test_retries_beyond_the_budget_start_as_tokens_come_the_oldest_first(cell: Cell) -> None:
    failed = fail(cell, 100)
    at_once = started(cell, 0.2)
    assert at_once == pytest.approx(BURST + 100 * SHARE, abs=2)
    assert waiting(cell) == 100 - at_once
    each = [started(cell, 1) for _ in range(100)]
    assert max(each) <= LEAST + 1
    assert sum(each) == 100 - at_once
    needed = (100 - at_once) // LEAST
    assert sum(each[: needed + 6]) == sum(each)  # no longer than that
    assert [one.id for one in cell.fetch(WORKER, 200)] == failed
    assert not cell.redis("EXISTS", cell.keys.retrying(), f"{cell.prefix}delayed:m")


def test_retries_that_are_due_at_a_low_rate_start_at_a_low_rate_whatever_was_promised_before(
    cell: Cell,
) -> None:
    """A flood of attempts of which each asks for a retry; then there are no more attempts."""
    for _ in range(3):
        fail(cell, 1000, after_ms=1000)
        pass_s(cell, 0.3)
    at_once = started(cell, 2)
    assert at_once <= BURST + 3000 * SHARE + LEAST
    each = [started(cell, 1) for _ in range(60)]
    assert max(each) <= LEAST + 1
    assert sum(each) == pytest.approx(60 * LEAST, abs=10 * LEAST)  # and it soon is that much
    assert at_once + sum(each) + waiting(cell) == 3000


def test_a_busy_pool_may_retry_its_share_of_what_it_attempts(cell: Cell) -> None:
    attempts = 900
    for _ in range(4):
        succeed(cell, attempts)
    fail(cell, attempts)
    assert (started(cell, 1), waiting(cell)) == (attempts, 0)  # within its share: none is held


def test_a_busy_pool_is_held_to_its_share(cell: Cell) -> None:
    fail(cell, 900)
    assert started(cell, 1) == pytest.approx(BURST + 900 * SHARE, abs=BURST / WINDOW_S + LEAST)
    for _ in range(20):
        succeed(cell, 90)
        assert started(cell, 1) == pytest.approx(90 * SHARE, abs=1)


def test_what_is_handed_back_unstarted_is_no_retry(cell: Cell) -> None:
    fail(cell, BURST * 3, retry=False)
    cell.fill_bucket(0)
    assert (started(cell, 1), waiting(cell)) == (BURST * 3, 0)


def test_celerys_own_retries_go_by_the_same_budget(cell: Cell) -> None:
    retried = BURST * 2
    cell.enqueue(*(message(f"m{number}") for number in range(retried)))
    for one in cell.fetch(WORKER, retried):
        assert cell.complete(one, effects.again(message(one.id))) == "ok"
    at_once = queued(cell)
    assert at_once == pytest.approx(BURST + retried * SHARE, abs=2)
    assert cell.redis("HLEN", cell.keys.delayed_messages()) == retried - at_once
    each = [started(cell, 1) for _ in range(retried)]
    assert (sum(each), max(each)) == (retried - at_once, LEAST)
    assert {one.id for one in cell.fetch(WORKER)} == {f"m{number}" for number in range(retried)}


def test_a_retry_that_could_start_at_once_does_not_overtake_those_that_wait(cell: Cell) -> None:
    failed = fail(cell, 60)
    moved = started(cell, 1)
    assert [one.id for one in cell.fetch(WORKER)] == failed[:moved]
    cell.enqueue(message("late"))
    [late] = cell.fetch(WORKER)
    pass_s(cell, 5)
    cell.fail(late, after_ms=0)
    assert cell.fetch(WORKER) == []
    assert sum(started(cell, 1) for _ in range(60)) == 61 - moved
    assert [one.id for one in cell.fetch(WORKER)] == [*failed[moved:], "late"]


def test_the_sweeper_is_told_when_the_next_token_comes_and_not_to_come_all_the_time(
    cell: Cell,
) -> None:
    fail(cell, 150)
    for _ in range(20):
        started(cell, 1)
    for _ in range(20):
        _, wait_ms = promote(cell)
        assert 0 < wait_ms <= 1000 / LEAST + 1
        assert started(cell, wait_ms / 1000) == 1  # neither too early nor too late
    fail(cell, 900)
    started(cell, 1)
    assert 150 < promote(cell)[1] <= 250  # tens of them a second come by the handful


def test_retries_start_at_their_rate_though_the_servers_clock_went_back(cell: Cell) -> None:
    failed = fail(cell, 60)
    moved = started(cell, 1)
    pass_s(cell, -3600)  # what was noted of time is an hour ahead of it
    at_once = started(cell)
    assert at_once <= 1
    assert 0 < promote(cell)[1] <= 1000 / LEAST + 1
    each = [started(cell, 1) for _ in range(60)]
    assert (at_once + sum(each), waiting(cell)) == (60 - moved, 0)
    assert max(each) <= LEAST + 1
    assert [one.id for one in cell.fetch(WORKER)] == failed


def test_retries_that_wait_hold_up_nothing_else(cell: Cell) -> None:
    for _ in range(6):
        fail(cell, 1000)
    started(cell, 1)
    held = waiting(cell)
    assert held > 4000
    cell.enqueue(message("other", pool="q", due=-1), message("same", due=-1), limit=1_000_000)
    wait_until(lambda: promote(cell, 2)[0] == 2, "both are due and moved by a call of two")
    assert (cell.redis("XLEN", cell.keys.stream("q", "normal")), waiting(cell)) == (1, held)


def test_the_retries_of_one_pool_do_not_wait_for_those_of_another(cell: Cell) -> None:
    fail(cell, 1000)
    started(cell, 1)
    cell.enqueue(message("q", pool="q"), limit=1_000_000)
    fetch = calls.fetch(cell.prefix, WORKER, "q", 1, 0, ["normal", 1])
    _, [[_, stream, entry, *_]] = cell.store.call(fetch)
    cell.store.call(calls.fail(cell.prefix, "q:normal", stream, entry, after_ms=1, retry=True))
    wait_until(lambda: promote(cell) and cell.redis("XLEN", stream), "it is started")


def test_a_debt_is_never_made_so_a_quiet_pools_first_retries_are_free(cell: Cell) -> None:
    fail(cell, 10 * BURST)
    started(cell, 1)
    assert waiting(cell) > 0
    cell.redis("DEL", cell.keys.delayed(), cell.keys.delayed_messages())
    cell.redis("DEL", cell.keys.retries("p"), cell.keys.retrying())
    pass_s(cell, WINDOW_S + 1)
    fail(cell, BURST)
    assert (started(cell, 0.1), waiting(cell)) == (BURST, 0)


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
        delayed = store.keys.delayed_messages()
        wait_until(lambda: store.command("HLEN", delayed) > 60, "most of the retries wait")

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
        with home() as user:
            shown = user.run("status", env=app.variables).stdout
        assert re.search(r"held \d+ retries of pool shared: they are at their budget", shown)


def test_a_retry_begins_behind_the_time_that_a_model_server_asked_for(
    url: str, ledger: Ledger
) -> None:
    with running("tests.support.apps.failing", url, ledger) as app:
        app.worker()
        assert app.app.asked_flow.submit(0.8).result(timeout=10) == 0.8
        first, second = (float(line.split()[1]) for line in ledger.lines("asked "))
        assert 0.8 <= second - first < 5
