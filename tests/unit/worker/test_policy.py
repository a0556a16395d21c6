"""Which lanes are asked for, in which order, for how much."""

from __future__ import annotations

from agentq.worker.policy import InOrder

LANES = ["high", "normal", "low"]


def test_lanes_are_asked_in_order_for_all_the_room() -> None:
    assert InOrder(LANES).quotas(10, 0) == ["high", 10, "normal", 10, "low", 10]


def test_every_eighth_time_the_last_lane_comes_first_for_a_share() -> None:
    policy = InOrder(LANES)
    turned = [turn for turn in range(24) if policy.quotas(80, turn)[0] == "low"]
    assert turned == [7, 15, 23]
    assert policy.quotas(80, 7)[:6] == ["low", 10, "normal", 10, "high", 10]
    assert policy.quotas(80, 7)[6:] == ["high", 80, "normal", 80, "low", 80]


def test_a_share_is_never_nothing() -> None:
    assert InOrder(LANES).quotas(1, 7)[:2] == ["low", 1]
