"""The arithmetic of a duty cycle."""

from __future__ import annotations

import pytest

from agentq.host.duty import LONGEST, LOOK_S, SMALLEST, Budget


def busy(share: float, cores: int, seconds: float) -> tuple[float, float]:
    """Return the share that processes get which always want *cores*, and their longest standstill."""
    wall = used = longest = 0.0
    budget = Budget(share, wall=wall, used=used)
    while wall < seconds:
        wall, used = wall + LOOK_S, used + LOOK_S * cores
        pause = budget.pause(wall=wall, used=used)
        wall, longest = wall + pause, max(longest, pause)
    return used / wall, longest


@pytest.mark.parametrize(
    ("share", "cores"), [(0.5, 1), (0.25, 1), (SMALLEST, 1), (1.5, 2), (0.75, 1)]
)
def test_who_always_wants_more_gets_the_share(share: float, cores: int) -> None:
    got, longest = busy(share, cores, 60)
    assert got == pytest.approx(share, rel=0.05)
    assert longest <= LONGEST.total_seconds()


def test_who_wants_less_never_stands_still() -> None:
    budget = Budget(0.5, wall=0, used=0)
    assert [budget.pause(wall=n * LOOK_S, used=n * LOOK_S * 0.4) for n in range(1, 100)] == [0] * 99


def test_an_idle_hour_buys_a_tenth_of_a_second() -> None:
    budget = Budget(0.5, wall=0, used=0)
    assert budget.pause(wall=3600, used=0) == 0
    assert budget.pause(wall=3600.1, used=0.09) == 0
    assert budget.pause(wall=3600.2, used=0.19) > 0


def test_a_debt_is_paid_in_pieces_that_break_no_lease() -> None:
    budget = Budget(0.5, wall=0, used=0)
    pauses, wall = [], 0.0
    while pause := budget.pause(wall=wall, used=1.0):  # found late, had used a second
        pauses.append(pause)
        wall += pause
    assert max(pauses) == LONGEST.total_seconds()
    assert sum(pauses) == pytest.approx(2.0)
