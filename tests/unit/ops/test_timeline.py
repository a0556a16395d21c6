"""The arithmetic of a run's timeline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.ops.timeline import (
    KINDS,
    Attempt,
    attempts_of,
    batches_of,
    costs_of,
    groups_of,
    shares_of,
)
from agentq.runs.record import RunEvent


def step(
    start: int, ran: float, *, waited: float = 0, name: str = "app.work", **more: Any
) -> Attempt:
    facts = {"task": f"t{start}", "state": "done", "attempt": 1, "worker": "w@h", "core": "0"}
    return Attempt(step=name, start=start, waited=waited, ran=ran, **{**facts, **more})


def costs(*attempts: Attempt, began: float = 0, ended: float = 0) -> dict[str, float]:
    found = costs_of(attempts, began=began, ended=ended)
    return {kind: ms for kind, ms in found.items() if ms}


def test_a_step_that_says_nothing_of_its_time_is_queue_and_own_code() -> None:
    assert costs(step(10, 30, waited=10), ended=40) == {"queue": 10, "own code": 30}


def test_what_a_step_spent_is_taken_from_its_own_code() -> None:
    one = step(0, 100, spent={"model": 60, "tools": 10, "state": 5, "context": 20})
    assert costs(one, ended=100) == {
        "model": 60, "tools": 10, "state and messages": 5, "context": 20, "own code": 5,
    }  # fmt: skip


def test_calls_side_by_side_are_scaled_to_what_the_step_ran() -> None:
    assert costs(step(0, 100, spent={"model": 300, "tools": 100}), ended=100) == {
        "model": 75, "tools": 25,
    }  # fmt: skip


def test_a_failed_attempt_and_the_pause_after_it_are_failed_attempts() -> None:
    tried = step(0, 50, task="t", state="retry", pause=20, spent={"model": 40})
    again = step(75, 25, task="t", attempt=2, waited=5)
    assert costs(tried, again, ended=100) == {"failed attempts": 70, "queue": 5, "own code": 25}


def test_the_wait_of_an_attempt_whose_worker_died_is_lost_with_it() -> None:
    assert costs(step(15_000, 10, attempt=2, waited=15_000), ended=15_010) == {
        "lost with a worker": 15_000, "own code": 10,
    }  # fmt: skip


def test_an_attempt_that_died_with_its_worker_is_lost_with_it_and_so_is_the_wait_behind() -> None:
    lost = step(5, 100, task="t", state="lost", waited=5)
    again = step(110, 10, task="t", attempt=2, waited=5)
    assert costs(lost, again, ended=120) == {"queue": 5, "lost with a worker": 105, "own code": 10}


def test_a_models_own_retries_count_as_failed_attempts() -> None:
    assert costs(step(0, 10, spent={"model": 4, "retries": 6}), ended=10) == {
        "model": 4, "failed attempts": 6,
    }  # fmt: skip


def test_moments_without_a_step_are_messages() -> None:
    first, second = step(12, 8, waited=2), step(25, 5)
    # 0-10 until it was queued, 20-25 between the two, 30-33 until the run had ended.
    assert costs(first, second, ended=33) == {
        "queue": 2, "own code": 13, "state and messages": 10 + 5 + 3,
    }  # fmt: skip


def test_steps_side_by_side_leave_no_gap_between_them() -> None:
    long, short = step(0, 100), step(10, 10)
    assert costs(long, short, ended=100) == {"own code": 110}


def test_shares_of_nothing_are_zero() -> None:
    assert set(shares_of(costs_of([], began=5, ended=5)).values()) == {0.0}


_TIMES = st.floats(0, 1e6, allow_nan=False)


@given(
    st.lists(
        st.builds(
            step,
            st.integers(0, 10**6),
            _TIMES,
            waited=_TIMES,
            spent=st.dictionaries(st.sampled_from(("model", "tools", "state", "context")), _TIMES),
            state=st.sampled_from(("done", "failed", "retry", "lost")),
        ),
        min_size=1,
    )
)
def test_shares_always_add_up_to_a_hundred_and_none_is_negative(attempts: list[Attempt]) -> None:
    found = costs_of(attempts, began=0, ended=2 * 10**6)
    assert tuple(found) == KINDS
    assert min(found.values()) >= -1e-6
    assert sum(shares_of(found).values()) == pytest.approx(100)


def test_batches_are_counted_once_however_many_steps_share_them() -> None:
    # A batch of four: three items of one step and one of another; and one item alone.
    found = batches_of([step(0, 1, batches={4: 3, 1: 1}), step(1, 1, batches={4: 1})])
    assert (found.items, found.batches, found.mean, found.largest) == (5, 2, 2.5, 4)


def test_a_run_without_calls_has_no_batches() -> None:
    found = batches_of([step(0, 1)])
    assert (found.items, found.batches, found.mean, found.largest) == (0, 0, 0, 0)


def test_more_than_four_attempts_of_a_step_are_shown_as_one() -> None:
    plan = step(0, 5, name="app.plan")
    wide = [step(10 + place, 10 * place) for place in range(1, 6)]
    first, second = groups_of([plan, *wide])
    assert (first.label, first.wide, second.label, second.wide) == ("plan", False, "work", True)
    assert (second.ran.least, second.ran.middle, second.ran.most) == (10, 30, 50)
    assert [attempt.ran for attempt in second.slowest] == [50, 40, 30]


def test_events_are_read_in_order_of_start_with_what_each_step_last_said() -> None:
    facts = {"state": "done", "attempt": 1, "worker": "w@h", "core": "1", "waited": 2, "ran": 3.5}
    later = {**facts, "step": "m.b", "task": "2", "start": 20, "spent": {"model": 3}}
    earlier = {
        **facts, "step": "m.a", "task": "1", "start": 10, "state": "retry", "after": 40,
        "error": "ValueError", "message": "no", "batches": {"16": 32},
    }  # fmt: skip
    events = [
        RunEvent("1-0", "progress", {"task": "2", "step": "m.b", "message": "first"}),
        RunEvent("2-0", "progress", {"task": "2", "step": "m.b", "message": "second"}),
        RunEvent("3-0", "step", later),
        RunEvent("4-0", "retry", earlier),
        RunEvent("5-0", "end", {"state": "done"}),
    ]
    a, b = attempts_of(events)
    assert (a.label, a.pause, a.error, a.batches, a.end) == (
        "a",
        40,
        "ValueError: no",
        {16: 32},
        13.5,
    )
    assert (b.label, b.said, b.spent) == ("b", "second", {"model": 3})
