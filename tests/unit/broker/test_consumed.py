"""How long a process has had room and taken nothing, by the reports of its renewals."""

from __future__ import annotations

import pytest

from agentq.broker.consumed import Consumed

BEFORE = {"running": 1, "done": 4, "slots": 2}
"""Reported at second 0; the second report is of second 60."""


@pytest.mark.parametrize(
    ("after", "still_s"),
    [
        (BEFORE, 60),  # it could have taken one all the time
        (BEFORE | {"running": 2}, 0),  # took one
        (BEFORE | {"running": 0, "done": 5}, 60),  # ended one and took none
        (BEFORE | {"done": 9}, 0),
    ],
)
def test_who_has_room_and_takes_nothing_is_told_for_how_long(
    after: dict[str, int], still_s: int
) -> None:
    assert two_reports(BEFORE, after) == still_s * 1000


@pytest.mark.parametrize(
    "before",
    [
        {"running": 2, "done": 4, "slots": 2},  # full, of long steps
        {"running": 2, "done": 4, "slots": 1},  # fewer slots since, as they adapt
        {"running": 0, "done": 6, "slots": 0},  # warming up, or short of memory, and nothing runs
    ],
)
def test_who_had_no_room_until_now_has_not_stood_still(before: dict[str, int]) -> None:
    """A step of a minute that has just ended is no minute in which none was taken."""
    assert two_reports(before, before) == 0
    assert two_reports(before, {"running": 1, "done": 5, "slots": 2}) == 60_000
    assert two_reports(before, {"running": 1, "done": 5, "slots": 2}, again_s=30) == 30_000


def two_reports(before: dict[str, int], after: dict[str, int], *, again_s: int = 0) -> int:
    """Return what the second says, a minute behind the first, which was repeated *again_s* before."""
    now = 0.0
    consumed = Consumed(clock=lambda: now)
    consumed.report(**before)
    for now in [60.0 - again_s, 60.0] if again_s else [60.0]:
        found = consumed.report(**(after if now == 60 else before))
    return found["still_ms"]
