"""Absolute deadlines on the broker's clock."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agentq.errors import DeadlineExceeded
from agentq.timing.deadline import NEVER, BrokerClock, Deadline, shortest


def test_remaining_time_shrinks_to_zero_and_not_below() -> None:
    deadline = Deadline(10_000)
    assert deadline.remaining(9_000) == timedelta(seconds=1)
    assert deadline.remaining(10_000) == timedelta(0)
    assert deadline.remaining(11_000) == timedelta(0)


def test_a_deadline_is_passed_behind_its_instant_and_not_at_it() -> None:
    assert not Deadline(10_000).passed(10_000)
    assert Deadline(10_000).passed(10_001)


def test_no_deadline_never_comes() -> None:
    assert NEVER.remaining(1 << 50) is None
    assert not NEVER.passed(1 << 50)
    NEVER.check(1 << 50, "step")


def test_a_passed_deadline_says_what_was_late_and_by_how_much() -> None:
    with pytest.raises(DeadlineExceeded, match=r"step 'a': its run's deadline passed 1\.5 s ago"):
        Deadline(10_000).check(11_500, "step 'a'")


def test_the_shortest_limit_counts_and_unset_ones_do_not() -> None:
    second, minute = timedelta(seconds=1), timedelta(minutes=1)
    assert shortest(None, minute, second) == second
    assert shortest(None, None) is None


def test_the_brokers_clock_is_carried_on_between_answers() -> None:
    clock = BrokerClock()
    clock.learn(1_000_000, 50.0)
    assert clock.now_ms(50.25) == 1_000_250
    clock.learn(2_000_000, 60.0)
    assert clock.now_ms(60.0) == 2_000_000


def test_a_slow_answer_does_not_set_the_brokers_clock_back() -> None:
    clock = BrokerClock()
    clock.learn(10_000, 1.0)

    clock.learn(10_100, 1.2)  # asked at 1.1 s, read 100 ms later

    assert clock.now_ms(1.2) >= 10_199


def test_a_clock_that_was_set_back_by_seconds_is_followed() -> None:
    clock = BrokerClock()
    clock.learn(10_000, 1.0)

    clock.learn(5_000, 1.1)

    assert clock.now_ms(1.1) == 5_000
