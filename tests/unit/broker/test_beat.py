from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from agentq.broker.beat import task_id

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_two_beats_in_one_slot_agree_on_the_id() -> None:
    later = MOMENT + timedelta(seconds=4.9)
    assert task_id("tick", 10, MOMENT) == task_id("tick", 10, later)


def test_entries_differ() -> None:
    assert task_id("tick", 10, MOMENT) != task_id("tock", 10, MOMENT)


@given(st.floats(0, 1e6), st.sampled_from([0.5, 1.0, 10.0, 60.0]))
def test_runs_an_interval_apart_never_share_an_id(offset: float, interval: float) -> None:
    first = MOMENT + timedelta(seconds=offset)
    second = first + timedelta(seconds=interval)
    assert task_id("tick", interval, first) != task_id("tick", interval, second)
