"""What agentq must reach, measure by measure: the project's first targets, and nothing measured."""

from __future__ import annotations

from dataclasses import dataclass

from agentq.ops.bench.rows import Better, Row, Test


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on agentq's figure: absolute, or a multiple of plain Celery's in the same run."""

    bound: float
    relative: bool = False

    def limit(self, baseline: Row | None) -> float | None:
        """Return the bound in the row's own unit; None if it needs a baseline and has none."""
        if not self.relative:
            return self.bound
        return self.bound * baseline.value if baseline and baseline.value is not None else None


# For headlines, not variants; a scaled run names other sizes ("50 sleeps") and is not judged.
_TARGETS: dict[tuple[str, str], Target] = {
    (Test.ENQUEUE, "one by one: producer CPU"): Target(1 / 4, relative=True),
    (Test.ENQUEUE, "in bulk"): Target(15_000),
    (Test.DRAIN, "worker + Redis CPU"): Target(1 / 12, relative=True),
    (Test.LATENCY, "pick-up p50"): Target(1.0),
    (Test.SLEEP, "5,000 sleeps of 1 s"): Target(2.0),
    (Test.SLEEP, "5,000 sleeps: peak RSS"): Target(150),
    (Test.FANIN, "fan-in of 1,000"): Target(1 / 8, relative=True),
    (Test.PIPELINE, "200 pipelines"): Target(2.0),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a row keeps its target, and the limit in the row's unit."""

    limit: float
    met: bool


def judge(row: Row, baseline: Row | None) -> Verdict | None:
    """Return the verdict on one of agentq's rows; None where no target applies."""
    target = None if row.variant else _TARGETS.get((row.test, row.measure))
    if target is None or row.value is None or (limit := target.limit(baseline)) is None:
        return None
    met = row.value >= limit if row.better is Better.HIGHER else row.value <= limit
    return Verdict(limit, met)
