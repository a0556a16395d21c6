"""Which lanes are asked for, in which order, for how much."""

from __future__ import annotations

import pytest

from agentq.broker.policy import InOrder

LANES = ["high", "normal", "low"]
ALL = [*LANES, "long"]


def test_lanes_are_asked_in_order_for_all_the_room() -> None:
    assert InOrder(LANES).quotas(10, 0) == ["high", 10, "normal", 10, "low", 10]


def test_every_eighth_time_the_lower_lanes_come_first_for_a_share() -> None:
    policy = InOrder(LANES)
    turned = [turn for turn in range(24) if policy.quotas(80, turn)[0] != "high"]
    assert turned == [7, 15, 23]
    assert policy.quotas(80, 7)[:4] == ["low", 10, "normal", 10]
    assert policy.quotas(80, 7)[4:] == ["high", 80, "normal", 80, "low", 80]


def test_each_lower_lane_leads_in_turn() -> None:
    policy = InOrder(ALL)
    leaders = [policy.quotas(1, turn)[0] for turn in range(7, 48, 8)]
    assert leaders == ["long", "low", "normal", "long", "low", "normal"]


def test_a_share_is_never_nothing() -> None:
    assert InOrder(LANES).quotas(1, 7)[:2] == ["low", 1]


@pytest.mark.parametrize("turn", range(16))
def test_a_single_lane_is_read_for_all_the_room(turn: int) -> None:
    assert InOrder(["high"]).quotas(3, turn) == ["high", 3]
