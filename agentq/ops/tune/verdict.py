"""Whether one value is better than another: pure, and deaf to noise.

Two sets of samples differ in a figure where their ranges do not overlap: of a figure that does not
differ that comes about by chance once in 126 times with five against five, once in 10 with three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one trial measured of the whole chain."""

    throughput: float
    """Chains a second."""
    p50_ms: float
    p99_ms: float
    """From submit to result."""
    switches: float
    """Context switches of workers and server, a chain: shown, and judged by nobody."""

    def as_dict(self) -> dict[str, float]:
        """Return it for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure of several trials."""

    least: float
    middle: float
    most: float


class Verdict(StrEnum):
    """How a candidate stands to its reference."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"
    MIXED = "mixed"
    """Better in one figure and worse in another: yours to weigh."""


def spread(samples: Sequence[Sample], figure: str) -> Spread:
    """Return a figure's spread."""
    values = [getattr(one, figure) for one in samples]
    return Spread(least=min(values), middle=median(values), most=max(values))


def judge(reference: Sequence[Sample], candidate: Sequence[Sample]) -> Verdict:
    """Compare by throughput and both latencies."""
    signs = {
        _sign(spread(reference, "throughput"), spread(candidate, "throughput")),
        -_sign(spread(reference, "p50_ms"), spread(candidate, "p50_ms")),
        -_sign(spread(reference, "p99_ms"), spread(candidate, "p99_ms")),
    }
    if {1, -1} <= signs:
        return Verdict.MIXED
    if 1 in signs:
        return Verdict.BETTER
    return Verdict.WORSE if -1 in signs else Verdict.SAME


def _sign(reference: Spread, candidate: Spread) -> int:
    """Return 1 where the candidate's whole range is above, -1 below, 0 where they overlap."""
    if candidate.least > reference.most:
        return 1
    return -1 if candidate.most < reference.least else 0
