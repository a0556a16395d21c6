"""When one value counts as better than another."""

from __future__ import annotations

import pytest

from agentq.ops.tune.verdict import Sample, Verdict, judge, spread


def samples(*throughputs: float, p50: float = 10, p99: float = 20) -> list[Sample]:
    return [
        Sample(throughput=one, p50_ms=p50 + place, p99_ms=p99 + place, switches=5)
        for place, one in enumerate(throughputs)
    ]


REFERENCE = samples(100, 104, 98, 101, 99)


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [
        (samples(110, 120, 105, 130, 111), Verdict.BETTER),
        (samples(90, 80, 97, 70, 91), Verdict.WORSE),
        (samples(110, 120, 104, 130, 111), Verdict.SAME),  # its least is the other's most
        (samples(500, 500, 500, 500, 97), Verdict.SAME),  # whatever the median says
        (samples(100, 104, 98, 101, 99, p50=1), Verdict.BETTER),
        (samples(100, 104, 98, 101, 99, p99=90), Verdict.WORSE),
        (samples(110, 120, 105, 130, 111, p99=90), Verdict.MIXED),
    ],
)
def test_only_what_stands_clear_of_the_spread_counts(
    candidate: list[Sample], verdict: Verdict
) -> None:
    assert judge(REFERENCE, candidate) == verdict


def test_nothing_is_better_than_itself() -> None:
    assert judge(REFERENCE, REFERENCE) == "no difference"


def test_the_spread_is_median_and_range() -> None:
    seen = spread(REFERENCE, "throughput")
    assert (seen.least, seen.middle, seen.most) == (98, 100, 104)
