"""A soak in small: every fault, more of them, in some seconds; its counts, not its figures."""

from __future__ import annotations

import pytest

from tests.fault.soak.plan import Plan
from tests.fault.soak.run import soak

PLAN = Plan(
    seconds=11.0, seed=20, kill_every=(1.5, 3.0), freeze=4.0, lease=3.0, rush=0.0,
    residents=("ours",), mortals=("ours", "prefork"),
)  # fmt: skip
FAULTS = ("workers killed", "restarts", "server frozen", "worker frozen", "replies lost")


@pytest.mark.timeout(120)
def test_a_stream_of_work_under_every_fault_ends_once_and_as_it_should() -> None:
    report = soak(PLAN)
    assert {what: found for what, found in report.problems.items() if found} == {}
    assert all(report.faults.get(what) for what in FAULTS), report.faults
    assert report.pieces >= PLAN.seconds * PLAN.rate * 0.9, report


def test_the_same_seed_gives_the_same_faults_and_a_short_soak_has_each_of_them() -> None:
    hour, short = Plan(seconds=3600.0, seed=1), Plan(seconds=180.0, seed=1)
    assert list(hour.faults()) == list(hour.faults())
    assert list(hour.faults()) != list(Plan(seconds=3600.0, seed=2).faults())
    counts = [[fault for _, fault in plan.faults()].count for plan in (hour, short)]
    assert [count("restart") for count in counts] == [18, 2]
    assert [count("freeze") for count in counts] == [11, 2]
    assert 216 <= counts[0]("kill") <= 648
    assert all(hour.calm <= at < hour.seconds for at, _ in hour.faults())
