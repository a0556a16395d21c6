"""`python -m tests.fault`: the long form of the fault matrix, its table, and 1 where it does not hold."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from tests.fault.scenarios.matrix import Scenario
    from tests.fault.scenarios.row import Row

_TABLE = "{:>3}  {:58}  {:>5}  {:>4}  {:>7}  {:>8}  {}"


def main(arguments: Sequence[str]) -> int:
    """Try what was chosen; print each row as it is there."""
    chosen = _parsed(arguments)
    if chosen.server:
        os.environ["AGENTQ_TEST_SERVER"] = chosen.server
    import tests.support.redis_server  # noqa: F401 -- takes the choice out of the environment
    from tests.fault.scenarios.matrix import MATRIX

    if not chosen.json:
        print(_TABLE.format("row", "fault", "tried", "lost", "doubled", "recovery", "note"))
    holds = True
    for scenario in MATRIX:
        if chosen.row and scenario.number not in chosen.row:
            continue
        began = time.monotonic()
        rows = _tried(scenario, chosen.times or scenario.times)
        for row in rows:
            holds = holds and row.holds
            _show(row, took=time.monotonic() - began, as_json=chosen.json)
    return 0 if holds else 1


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fault", description=__doc__)
    parser.add_argument("--row", type=int, action="append", help="only this one; may be repeated")
    parser.add_argument("--times", type=int, help="trials of each, instead of its own number")
    parser.add_argument("--server", choices=["valkey", "redis"], help="default: valkey")
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser.parse_args(arguments)


def _tried(scenario: Scenario, times: int) -> list[Row]:
    """Return a scenario's rows; one that breaks off counts all it tried as lost."""
    from tests.fault.scenarios.row import Row

    try:
        return scenario.run(times)
    except Exception as error:  # noqa: BLE001 -- the others are still to be tried
        traceback.print_exc()
        note = f"broke off: {type(error).__name__}: {error}".splitlines()[0]
        return [Row(scenario.number, scenario.name, times, times, 0, None, note)]


def _show(row: Row, *, took: float, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps(asdict(row) | {"took_s": round(took, 1)}).decode(), flush=True)
        return
    recovery = "-" if row.recovery_s is None else f"{row.recovery_s:.2f} s"
    print(
        _TABLE.format(row.number, row.fault, row.tried, row.lost, row.doubled, recovery, row.note),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
