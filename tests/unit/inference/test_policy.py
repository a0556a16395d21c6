from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentq.inference.policy import (
    BatchLimits,
    Close,
    Waiting,
    cheapest_split,
    choose,
    decide,
    mean_gap,
)

LIMITS = BatchLimits(max_items=16, window_ms=15, call_cost=80)


def waiting(**changes: object) -> Waiting:
    facts: dict[str, object] = {
        "count": 3,
        "oldest_ms": 4.0,
        "newest_ms": 1.0,
        "gap_ms": None,
        "missing": None,
        "busy": False,
    }
    return Waiting(**(facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (waiting(count=16), Close.FULL),
        (waiting(missing=0), Close.SIBLINGS),
        (waiting(oldest_ms=15.0), Close.WINDOW),
        (waiting(gap_ms=16.0), Close.IDLE),  # the next one is not worth waiting for
        (waiting(gap_ms=0.5, newest_ms=1.5), Close.IDLE),  # the next one is overdue
        (waiting(gap_ms=0.5), 0.5),  # a tenth of the window is always given
        (waiting(gap_ms=2.0), 3.0),  # twice the gap, less what has passed
        (waiting(gap_ms=14.0), 11.0),  # no longer than the window
        (waiting(), 11.0),  # nothing is known: the window
        (waiting(missing=2, gap_ms=0.1), 11.0),  # siblings are sure to come
        (waiting(missing=2, oldest_ms=15.0), Close.WINDOW),
    ],
)
def test_a_batch_closes_for_the_first_reason_that_holds(
    state: Waiting, expected: Close | float
) -> None:
    assert decide(state, LIMITS) == expected


@pytest.mark.parametrize("state", [{"count": 16}, {"missing": 0}, {"oldest_ms": 99.0}])
def test_nothing_closes_while_the_backend_is_busy(state: dict[str, object]) -> None:
    assert decide(waiting(busy=True, **state), LIMITS) is None


def test_a_window_of_zero_passes_items_straight_on() -> None:
    assert decide(waiting(oldest_ms=0.0), BatchLimits(window_ms=0)) is Close.WINDOW


def test_the_mean_gap_follows_the_newest_arrivals() -> None:
    assert mean_gap(None, 10.0) == 10.0
    assert mean_gap(10.0, 20.0) == pytest.approx(12.0)


def test_short_items_go_together() -> None:
    assert choose([10, 12, 9, 11], LIMITS) == [0, 1, 2, 3]


def test_a_long_item_among_short_ones_goes_alone() -> None:
    lengths = [10, 12, 9, 2000, 11, 8, 10, 12, 9]
    assert choose(lengths, LIMITS) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert choose([2000, 10, 12], LIMITS) == [0]


def test_of_many_the_nearest_in_length_to_the_oldest_are_taken() -> None:
    limits = BatchLimits(max_items=2)
    assert choose([50, 10, 90, 52, 49], limits) == [0, 4]


def test_a_split_is_the_cheapest_one() -> None:
    assert cheapest_split([10, 10, 300, 310], call_cost=80) == [2, 4]
    assert cheapest_split([10, 10, 11], call_cost=0) == [2, 3]
    assert cheapest_split([10, 10, 11], call_cost=1e9) == [3]
    assert cheapest_split([], call_cost=80) == []


def cost(lengths: list[int], ends: list[int], call_cost: float) -> float:
    parts = pairwise([0, *ends])
    return sum(call_cost + (end - begin) * lengths[end - 1] for begin, end in parts)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=16).map(sorted), st.integers(0, 500))
def test_a_split_never_costs_more_than_one_by_one_or_all_together(
    lengths: list[int], call_cost: int
) -> None:
    found = cost(lengths, cheapest_split(lengths, call_cost=call_cost), call_cost)
    assert found <= sum(call_cost + length for length in lengths)
    assert found <= call_cost + len(lengths) * lengths[-1]


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=60), st.integers(1, 16))
def test_a_batch_has_the_oldest_and_at_most_as_many_as_allowed(
    lengths: list[int], most: int
) -> None:
    chosen = choose(lengths, BatchLimits(max_items=most))
    assert chosen[0] == 0
    assert len(chosen) <= most
    assert chosen == sorted(set(chosen))
