"""When a worker stops taking work, and when it goes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from agentq.host.cgroup import Cgroup
from agentq.settings import Pool
from agentq.worker import load
from agentq.worker.policy import LEAST_SLOTS, AdaptiveSlots, MemoryGate, Strain, Verdict

OPEN, CLOSED, LEAVE = Verdict.OPEN, Verdict.CLOSED, Verdict.LEAVE


def looks(*seen: tuple[float, int, float]) -> list[Verdict]:
    """Return the verdicts on (share of the limit, steps that run, seconds)."""
    gate = MemoryGate(limit_bytes=1000)
    return [
        gate.look(used_bytes=round(share * 1000), running=running, now=now)
        for share, running, now in seen
    ]


def test_it_closes_at_85_percent_and_opens_below_75() -> None:
    seen = [(0.84, 1, 0), (0.85, 1, 1), (0.80, 1, 2), (0.75, 1, 3), (0.74, 1, 4), (0.84, 1, 5)]
    assert looks(*seen) == [OPEN, CLOSED, CLOSED, CLOSED, OPEN, OPEN]


def test_it_leaves_after_five_seconds_at_95_percent() -> None:
    assert looks((0.95, 1, 0), (0.99, 1, 4.9), (0.95, 1, 5)) == [CLOSED, CLOSED, LEAVE]


def test_a_moment_below_95_percent_begins_the_five_seconds_anew() -> None:
    assert looks((0.96, 1, 0), (0.94, 1, 4), (0.96, 1, 5), (0.96, 1, 9.9)) == [CLOSED] * 4


def test_it_leaves_when_it_is_idle_for_ten_seconds_and_memory_does_not_come_back() -> None:
    assert looks((0.86, 1, 0), (0.8, 0, 1), (0.8, 0, 10.9), (0.8, 0, 11)) == [CLOSED] * 3 + [LEAVE]


def test_a_step_that_runs_may_hold_its_memory_for_as_long_as_it_takes() -> None:
    assert looks((0.9, 1, 0), (0.9, 1, 3600)) == [CLOSED, CLOSED]


def test_idle_and_open_is_no_reason_to_leave() -> None:
    assert looks((0.84, 0, 0), (0.84, 0, 3600)) == [OPEN, OPEN]


EASY = Strain(lag_s=0.001, busy=0.1, memory=0, running=10_000)
LATE = Strain(lag_s=0.3, busy=1, memory=0, running=10_000)


def slots_after(*strains: Strain, most: int = 1000) -> list[int]:
    slots = AdaptiveSlots(most=most)
    return [slots.look(strain) for strain in strains]


def test_slots_double_while_all_are_taken_and_the_loop_is_prompt_up_to_their_bound() -> None:
    assert slots_after(*[EASY] * 6) == [64, 128, 256, 512, 1000, 1000]


def test_slots_that_are_not_all_taken_are_enough() -> None:
    assert slots_after(*[replace(EASY, running=20)] * 3) == [32, 32, 32]


def test_a_loop_that_is_late_twice_in_a_row_has_a_third_fewer_down_to_the_least() -> None:
    assert slots_after(*[LATE] * 4) == [32, 21, 21, 14]
    assert slots_after(*[LATE] * 40)[-1] == LEAST_SLOTS
    assert slots_after(*[LATE] * 40, most=2)[-1] == 2


def test_fewer_than_the_slots_that_run_are_what_is_cut() -> None:
    assert slots_after(LATE, replace(LATE, running=12))[-1] == 8


def test_one_late_look_changes_nothing_but_ends_the_doubling() -> None:
    assert slots_after(EASY, LATE, EASY, EASY, EASY) == [64, 64, 64, 96, 96]


def test_memory_that_is_short_takes_slots_and_a_busy_core_gives_none() -> None:
    assert slots_after(*[replace(EASY, memory=0.75)] * 2) == [32, 21]
    assert slots_after(*[replace(EASY, memory=0.65)] * 2) == [32, 32]
    assert slots_after(*[replace(EASY, busy=0.8)] * 2) == [32, 32]


def test_between_late_and_prompt_nothing_moves() -> None:
    assert slots_after(*[replace(EASY, lag_s=0.1)] * 5) == [32] * 5


def test_the_smaller_limit_of_settings_and_control_group_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = 200 << 20, 300 << 20
    for of_group, of_pool, limit in (
        (small, large, small), (large, small, small), (None, small, small), (large, None, large),
    ):  # fmt: skip
        monkeypatch.setattr(load, "read_cgroup", partial(Cgroup, memory_bytes=of_group))
        assert load.memory_limit(Pool(memory=of_pool), None) == limit
