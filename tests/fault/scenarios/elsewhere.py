"""Rows that tests hold already: run as they are, a test a trial."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.fault.scenarios.row import Row
from tests.support.redis_server import PROGRAM
from tests.support.worker_process import ROOT


def tests(trials: int, *, number: int, fault: str, which: tuple[str, ...]) -> list[Row]:
    """Run the tests named by *which*, files under `tests/` with what `-k` takes; what fails is lost."""
    tried = failed = 0
    notes = []
    for _ in range(trials):
        for one in which:
            file, _, chosen = one.partition("::")
            done = _run(f"tests/{file}", chosen)
            counts = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", done[-1])}
            failed += counts.get("failed", 0) + counts.get("error", 0)
            tried += counts.get("passed", 0) + counts.get("failed", 0) + counts.get("error", 0)
            notes += [line for line in done if line.startswith(("FAILED", "SKIPPED", "ERROR"))]
    note = "; ".join(dict.fromkeys(notes)) or "by " + ", ".join(which)
    return [Row(number, fault, tried, failed, 0, None, note)]


def _run(file: str, chosen: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", file, "-k", chosen]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"AGENTQ_TEST_SERVER": "redis" if PROGRAM else "valkey"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip().splitlines() or [done.stderr]
