"""How runs and steps ended, as it is told to Prometheus: each way, exactly, whoever ended them."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentq.errors import AgentQError, BrokerUnavailable
from agentq.ops.lost_worker import hand_back
from agentq.ops.metrics import page
from agentq.ops.outcomes import told
from agentq.ops.plan import plan_of
from agentq.ops.planned import planned_here
from agentq.ops.replies import pairs
from agentq.ops.status import read_status
from agentq.settings import load_settings
from agentq.store import calls
from agentq.store.address import parse
from agentq.store.client import AsyncStore
from agentq.store.counts import MOST_NAMES, OTHERS, by_name
from agentq.worker.outcomes import Outcomes
from tests.support.cell import Cell, message
from tests.support.ledger import Ledger
from tests.support.running import Running, running
from tests.support.scraping import Scrape
from tests.support.waiting import wait_until

APP = "tests.support.apps.endings"


def scraped(app: Running) -> Scrape:
    return Scrape.of(page(app.app.aq).decode())


def submitted(app: Running, name: str, **options: str) -> str:
    """Submit a run that ends by itself, wait for that, and return its state."""
    run = app.app.aq.get_flow(f"{name}-flow").submit(1, **options)
    with suppress(AgentQError):
        run.result(timeout=20)
    return str(run.status().state)


def assert_each_end_is_told(found: Scrape) -> None:
    steps = {
        ("good", "done"): 3, ("bad", "failed"): 1, ("flaky", "done"): 1, ("slow", "failed"): 1,
    }  # fmt: skip
    runs = {**steps, ("held", "expired"): 1, ("held", "cancelled"): 1}
    for flow in ("good", "bad", "flaky", "slow", "held"):
        for state in ("done", "failed", "expired", "cancelled"):
            value = found.value("agentq_runs_ended_total", flow=f"{flow}-flow", state=state)
            assert value == runs.get((flow, state), 0), (flow, state)
    for (name, state), count in {**steps, ("plain", "done"): 1}.items():
        step = f"{APP}.{name}"
        assert found.value("agentq_steps_ended_total", step=step, state=state) == count
    assert found.value("agentq_steps_retried_total", step=f"{APP}.flaky") == 1
    assert found.value("agentq_steps_timed_out_total", step=f"{APP}.slow") == 1
    good = {"step": f"{APP}.good"}
    assert found.value("agentq_step_seconds_bucket", le="600.0", **good) == 3
    assert found.value("agentq_step_seconds_count", **good) == 3


@pytest.mark.timeout(60)
def test_every_end_is_counted_by_name_also_that_of_a_killed_worker(
    url: str, ledger: Ledger
) -> None:
    with running(APP, url, ledger, WORKER__LEASE="1500ms", RETRY__BUDGET="100") as app:
        worker = app.worker()
        assert Counter(submitted(app, "good") for _ in range(3)) == {"done": 3}
        assert [submitted(app, name) for name in ("bad", "flaky", "slow")] == [
            "failed", "done", "failed",
        ]  # fmt: skip
        assert submitted(app, "held", deadline="300ms") == "expired"
        assert app.app.plain.delay(1).get(timeout=10) == 1
        cancelled = app.app.aq.get_flow("held-flow").submit(1)
        wait_until(lambda: ledger.lines(f"held {cancelled.id}"), worker.log, 10)
        cancelled.cancel()
        worker.stop()  # it tells at its end what it has not told
        assert_each_end_is_told(scraped(app))
        killed = app.worker("killed")
        run = app.app.aq.get_flow("held-flow").submit(1)
        wait_until(lambda: ledger.lines(f"held {run.id}"), killed.log, 10)
        killed.kill()
        app.worker("next")
        wait_until(lambda: len(ledger.lines(f"held {run.id}")) == 2, killed.log, 20)
        run.cancel()
        after = scraped(app)
        assert after.value("agentq_steps_lost_total", step=f"{APP}.held") == 1
        step = f"{APP}.good"
        assert after.value("agentq_steps_ended_total", step=step, state="done") == 3


def test_flows_are_told_before_any_run_ended_and_steps_fall_into_their_bucket() -> None:
    fields = {"step:m.s|le0": "2", "step:m.s|le6": "1", "step:m.s|ms": "700500", "run:f|done": "4"}
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in told(fields, flows=["f", "g"])
        for sample in family.samples
    }
    assert found["agentq_runs_ended_total", "f", "done"] == 4
    assert found["agentq_runs_ended_total", "g", "failed"] == 0
    assert found["agentq_steps_ended_total", "m.s", "done"] == 3
    assert found["agentq_step_seconds_bucket", "m.s", "0.01"] == 2
    assert found["agentq_step_seconds_bucket", "m.s", "600.0"] == 2
    assert found["agentq_step_seconds_bucket", "m.s", "+Inf"] == 3
    assert found["agentq_step_seconds_sum", "m.s"] == 700.5


def test_what_the_broker_did_not_take_is_told_again_and_names_are_bounded(
    url: str, tmp_path: Path
) -> None:
    outcomes, cell = Outcomes(), Cell(url)
    for number in range(MOST_NAMES + 5):
        outcomes.returned(f"step {number}", 0.5)

    async def tell(where: str) -> None:
        store = AsyncStore(address=parse(where), timeout=timedelta(seconds=5))
        try:
            await outcomes.tell(store)
        finally:
            await store.close()

    with pytest.raises(BrokerUnavailable):
        asyncio.run(tell(f"agentq+unix://{tmp_path}/nobody.sock"))
    for _ in range(2):
        asyncio.run(tell(url))
    steps = by_name(pairs(cell.redis("HGETALL", cell.keys.counts())), "step")
    assert len(steps) == MOST_NAMES + 1
    assert steps[OTHERS] == {"le2": 5, "ms": 2500}
    assert steps["step 0"] == {"le2": 1, "ms": 500}


def test_the_functions_count_no_more_names_than_there_is_room_for(url: str) -> None:
    cell = Cell(url)
    cell.renew("dead", suspects=16)

    def lose(name: str) -> Any:
        cell.enqueue(message(name))
        assert len(cell.fetch("dead")) == 1
        assert hand_back(cell.store, load_settings(), "dead", suspects=True) == 1
        cell.renew("dead", suspects=16)
        cell.redis("DEL", cell.keys.returned("p", "normal"))
        return cell.redis("HGET", cell.keys.counts(), f"step:{name}|lost")

    assert lose("known") == b"1"
    for number in range(4_999):
        cell.redis("HSET", cell.keys.counts(), f"run:{number}|done", 1)
    assert lose("new") is None
    assert lose("known") == b"2"


def test_planned_is_what_is_installed_here_else_what_the_settings_say(
    url: str, tmp_path: Path
) -> None:
    cell = Cell(url)
    for host in (os.uname().nodename, "elsewhere"):
        report = orjson.dumps({"pools": ["shared"], "host": host})
        cell.store.call(calls.renew(cell.prefix, f"w@{host}", 60_000, first=True, report=report))
    workers = read_status(cell.store, brief=True).workers
    settings = load_settings(overrides={"pools.shared.processes": 3})
    plan = tmp_path / "plan.json"

    def shared() -> tuple[int, int]:
        found = planned_here(settings, workers, installed=plan)
        return next((one.planned, one.up) for one in found if one.pool == "shared")

    assert shared() == (3, 2)
    plan.write_bytes(
        plan_of(load_settings(overrides={"pools.shared.processes": 2}), cpu_steps=False).as_json()
    )
    assert shared() == (2, 1)
