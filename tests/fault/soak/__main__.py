"""`python -m tests.fault.soak --hours 1 --seed 20`: a soak, its table, and 1 when something does not hold."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fault.soak.plan import Plan

if TYPE_CHECKING:
    from tests.fault.soak.run import Report

_NAMED = 5
"""Of what does not hold so many are named."""


def main() -> int:
    """Read the arguments, soak, print; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="how long work is offered")
    parser.add_argument("--seed", type=int, default=20, help="the same one: the same faults")
    parser.add_argument(
        "--rate", type=float, default=8.0, help="pieces of work a second, of 4 steps"
    )
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--logs", type=Path, help="a folder for the ledger and the workers' logs")
    chosen = parser.parse_args()
    if chosen.logs is not None:
        chosen.logs.mkdir(parents=True, exist_ok=True)
    os.environ["AGENTQ_TEST_SERVER"] = chosen.server
    from tests.fault.soak.run import soak  # behind the choice, which it reads

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that workers and server end too
    plan = Plan(seconds=chosen.hours * 3600, seed=chosen.seed, rate=chosen.rate)
    report = soak(plan, logs=chosen.logs)
    print("\n".join(lines_of(report, chosen.server)))
    return 0 if report.holds else 1


def lines_of(report: Report, server: str) -> list[str]:
    """Return the table."""
    from tests.fault.soak.run import LEAST_THROUGHPUT, MOST_GROWTH

    plan = report.plan
    faults = ", ".join(f"{what} {count}" for what, count in sorted(report.faults.items()))
    return [
        f"soak of {plan.seconds / 60:g} min, seed {plan.seed}, {server}, appendfsync always",
        f"  faults      {faults}",
        f"  work        {report.pieces} pieces, {report.steps} steps",
        f"  again       {report.again} steps begun after a fault, {report.refused} submits sent",
        *(_line(what, len(found), 0, not found) for what, found in report.problems.items()),
        *(f"    {one}" for found in report.problems.values() for one in found[:_NAMED]),
        _line(
            f"steps a second, {report.calm:.1f} offered and ended without faults",
            f"{report.stormy:.1f} = {report.throughput:.0%}", f"{LEAST_THROUGHPUT:.0%}",
            report.throughput >= LEAST_THROUGHPUT,
        ),
        *(
            _line(
                f"{level.what}, {level.warm:.1f} after {plan.warm / 60:.1f} min",
                f"{level.end:.1f} = {level.growth:+.1%}",
                f"{MOST_GROWTH:+.0%}" if plan.tells_growth else "none",
                level not in report.grown,
            )
            for level in report.levels
        ),
        "holds" if report.holds else "does not hold",
    ]  # fmt: skip


def _line(what: str, found: object, limit: object, holds: bool) -> str:  # noqa: FBT001 -- a column
    return f"  {what:<58} {found!s:>18}  limit {limit!s:>4}  {'ok' if holds else 'NO'}"


if __name__ == "__main__":
    sys.exit(main())
