"""What README shows, done as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Home, home

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def reader() -> Iterator[Home]:
    """Somebody who pasted the example and started it."""
    with home() as found:
        (found.work / "weather.py").write_text(BLOCKS[0])
        until = "up; Ctrl-C ends it"
        with found.running("up", "-A", "weather:aq", "--no-dashboard", until=until):
            yield found


def test_the_example_flow_answers_as_shown(reader: Home) -> None:
    question = '"Weather in Paris Atlantis and Rome"'

    done = reader.run("submit", "forecast", question, "-A", "weather:aq", "--wait")

    assert done.stdout.strip() in README.read_text()
    assert "not on any map" in done.stdout


def test_the_example_caller_runs(reader: Home) -> None:
    (reader.work / "caller.py").write_text(BLOCKS[1])

    done = subprocess.run(
        [sys.executable, "caller.py"],
        cwd=reader.work,
        env=reader.environment(),
        capture_output=True,
        text=True,
        timeout=25,
        check=True,
    )

    lines = done.stdout.splitlines()
    assert lines[0] == "Rome: sunny"
    assert lines[-1] == "5"


def test_the_example_has_at_most_forty_lines() -> None:
    assert len(BLOCKS[0].splitlines()) <= 40
