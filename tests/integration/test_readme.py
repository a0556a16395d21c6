"""What README shows, done as it says."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from agentq import AgentQ, Context
from agentq.broker.app import App
from agentq.flows.flow import Flow
from agentq.ops.bench.rows import Test
from agentq.timing.deadline import BrokerClock
from tests.support.command_line import Home, home
from tests.unit.inference.model_server import GOOD, ModelServer, response

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


async def _in_a_step(block: str) -> dict[str, Any]:
    """Return what the names of *block* stand for after it ran as a step's body."""
    vectors = {"data": [{"index": 0, "embedding": [0.0]}, {"index": 1, "embedding": [1.0]}]}
    async with ModelServer(GOOD, response(200, vectors)) as server:
        aq = AgentQ("reader", overrides={"model.base_url": server.url})
        scope: dict[str, Any] = {"ctx": _context(aq)}
        body = indent(block, "    ")
        exec(f"async def step(ctx):\n{body}\n    return locals()", scope)  # noqa: S102 -- README's
        found: dict[str, Any] = await scope["step"](scope["ctx"])
        await aq.close_services()
    return found


def _context(aq: AgentQ) -> Context:
    return Context(
        run_id="", step="step", task_id="t", attempt=1, worker="w", services=aq.services(),
        embeddings=aq.embeddings, clock=BrokerClock(),
    )  # fmt: skip


def test_a_step_may_call_models_as_shown() -> None:
    found = asyncio.run(_in_a_step(BLOCKS[2]))

    assert (found["answer"], str(found["reply"])) == ("Hello there", "Hello there")
    assert found["vectors"] == [[0.0], [1.0]]
    assert set(re.findall(r" \.(\w+)", BLOCKS[2])) < set(dir(found["reply"]))


def _shown(row: str, pattern: str) -> set[str]:
    [line] = [line for line in README.read_text().splitlines() if line.startswith(f"| `{row}")]
    return set(re.findall(pattern, line.partition(" | ")[2]))


def _public(value: object) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}


def test_the_reference_names_all_that_a_context_and_a_run_have_and_no_more() -> None:
    aq = AgentQ("reader", overrides={"broker.url": "agentq://127.0.0.1:1/0"})

    assert _shown("ctx`", r"`ctx\.(\w+)") == _public(_context(aq)) - {"ledger"}
    assert _shown("run`", r"`run\.(\w+)") == _public(aq.run("id"))


def test_the_reference_names_all_options_of_steps_and_flows_and_no_more() -> None:
    def options(function: Any) -> set[str]:
        found = inspect.signature(function).parameters.values()
        return {one.name for one in found if one.kind is one.KEYWORD_ONLY}

    named = r"`(\w+)="
    assert _shown("@aq.step", named) == options(App._declare)  # noqa: SLF001 -- `step` is overloaded
    assert _shown("@aq.batched", named) == options(AgentQ.batched)
    assert _shown("aq.flow", named) == options(AgentQ.flow)
    assert _shown("flow.submit", named) == options(Flow.submit)


def test_the_table_of_figures_names_what_runs_each_row() -> None:
    [table] = re.findall(r"\| `agentq bench NAME` .*?\n\n", README.read_text(), re.DOTALL)
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(Test)


def test_the_example_has_at_most_forty_lines() -> None:
    assert len(BLOCKS[0].splitlines()) <= 40
