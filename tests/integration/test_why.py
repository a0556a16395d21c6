"""`agentq why`: each thing that a run can wait for is named, with its place and since when."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest

from agentq import AgentQ
from agentq.cli.why import lines
from agentq.errors import RunNotFound
from agentq.ops.pausing import Kind, pause, purge
from agentq.ops.why import Wait, explain
from agentq.store import calls, effects
from agentq.store.calls import Fitting
from tests.integration.test_pause import task
from tests.support.cell import KEEP_MS, Cell
from tests.support.command_line import home
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until

WORKER = "w1@host#1"


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew(WORKER)
    return cell


@pytest.fixture
def aq(url: str, monkeypatch: pytest.MonkeyPatch) -> AgentQ:
    monkeypatch.setenv("AGENTQ_BROKER__URL", url)
    monkeypatch.setenv("AGENTQ_ENV", "test")
    return AgentQ("why")


def only(aq: AgentQ, run: str = "r") -> Wait:
    [wait] = explain(aq, run).waits
    assert wait.for_ms is None or 0 <= wait.for_ms < 30_000
    return wait


def test_a_queued_step_has_its_place_and_what_its_pool_lacks(cell: Cell, aq: AgentQ) -> None:
    cell.enqueue(task("x"), task("y"))
    cell.enqueue(task("a", run="r"), run="r")
    cell.enqueue(task("z"))
    wait = only(aq)
    assert (wait.step, wait.where) == ("x.a", "queue")
    assert wait.said == "waits in queue p:normal, place 3 of 4; no worker serves pool p"


def test_a_place_counts_what_is_read_before_it(cell: Cell, aq: AgentQ) -> None:
    cell.enqueue(*(task(f"{n}") for n in range(3)))
    for handed in cell.fetch(WORKER, 2):
        cell.fail(handed, retry=False)
    cell.enqueue(*(task(f"m{n}") for n in range(700)))
    cell.enqueue(task("a", run="r"), run="r", limit=10_000)
    assert only(aq).said.startswith("waits in queue p:normal, place 704 of 704;")


def test_a_paused_pool_and_a_paused_step_are_said(cell: Cell, aq: AgentQ) -> None:
    cell.enqueue(task("a", run="r"), run="r")
    pause(cell.store, Kind.POOL, "p")
    assert only(aq).said == "waits in queue p:normal, place 1 of 1; pool p is paused"
    cell.redis("DEL", cell.keys.paused())
    pause(cell.store, Kind.STEP, "x.a")
    cell.fetch(WORKER)
    assert (only(aq).where, only(aq).said) == ("paused", "step x.a is paused")


def test_a_held_step_has_its_worker_and_lease(cell: Cell, aq: AgentQ) -> None:
    cell.enqueue(task("a", run="r"), run="r")
    cell.fetch(WORKER)
    wait = only(aq)
    assert (wait.step, wait.where) == ("x.a", "worker")
    assert wait.said.startswith("runs on w1@host, lease ends in ")
    cell.expire_lease(WORKER)
    assert only(aq).said == "runs on w1@host, whose lease is over: handed out anew"


def test_a_retry_and_a_parked_step_have_their_time(cell: Cell, aq: AgentQ) -> None:
    cell.enqueue(task("a", run="r"), run="r")
    [handed] = cell.fetch(WORKER)
    cell.fail(handed, after_ms=60_000)
    wait = only(aq)
    assert wait.where == "delayed"
    assert wait.said.startswith("waits for retry 1, due in ")
    cell.enqueue(task("b", run="q"), run="q")
    [handed] = cell.fetch(WORKER)
    park = calls.park(
        cell.prefix, "p:normal", handed.stream, handed.entry, after_ms=60_000, name="task x.a",
        limit_ms=600_000, keep_ms=KEEP_MS,
    )  # fmt: skip
    cell.store.call(park)
    wait = only(aq, "q")
    assert wait.where == "parked"
    assert wait.said.startswith("is parked: no worker has task x.a; offered again in ")


def test_a_retry_that_waits_for_the_budget_has_its_place(cell: Cell, aq: AgentQ) -> None:
    for run in ("q", "r"):
        cell.enqueue(task(run, run=run), run=run)
        [handed] = cell.fetch(WORKER)
        cell.fail(handed, after_ms=1 if run == "q" else 2)
    waiting = cell.keys.retries("p")

    def both_wait() -> bool:
        cell.fill_bucket(0)
        cell.promote(retries="0 1")
        return bool(cell.redis("ZCARD", waiting) == 2)

    wait_until(both_wait, "both are due")
    wait = only(aq)
    assert wait.where == "delayed"
    assert wait.said == (
        "waits for retry 1, place 2 of 2; retries of pool p are at their budget (retry.budget)"
    )


def test_a_fan_in_has_its_counts_and_what_waits_for_at_once(cell: Cell, aq: AgentQ) -> None:
    members = [task(f"m{n}", run="r")._replace(join=f"r:j1|{n}") for n in range(10)]
    join = effects.join(
        "r:j1", width=10, at_once=2, ttl_ms=KEEP_MS, run="r", body=[task("b")], members=members
    )
    cell.enqueue(join, run="r")
    [first] = cell.fetch(WORKER, 1)
    cell.complete(first, effects.part("r:j1", 0, b"1"), run="r")
    waits = explain(aq, "r").waits
    assert [wait.where for wait in waits] == ["queue", "queue", "fan-in"]
    assert waits[-1].step == "fan-in r:j1"
    assert waits[-1].said == "1 of 10 members have ended; 7 wait for `at_once`"


def test_a_wide_fan_out_is_said_in_a_line_for_each_place(cell: Cell, aq: AgentQ) -> None:
    members = [task(f"m{n}", run="r") for n in range(1000)]
    cell.enqueue(*members, run="r", limit=10_000)
    for handed in cell.fetch(WORKER, 5)[:2]:
        cell.fail(handed, after_ms=60_000)
    found = explain(aq, "r")
    assert len(found.waits) == 1000
    assert [group.said for group in found.groups] == [
        "3 of x.a run on w1@host",
        "995 of x.a wait in queue p:normal; no worker serves pool p",
        "2 of x.a wait for retry 1",
    ]
    assert all(group.for_ms is not None for group in found.groups)
    cell.enqueue(task("alone", run="q"), run="q", limit=10_000)
    [alone] = explain(aq, "q").groups
    assert alone.said.startswith("x.a: waits in queue p:normal, place 996 of 996")
    [line] = lines(explain(aq, "q"))
    assert line.endswith("since it was ready)"), "it has not lacked a worker for so long"


def test_a_purged_step_is_a_dead_letter(cell: Cell, aq: AgentQ) -> None:
    cell.enqueue(task("a", run="r"), run="r")
    purge(cell.store, Fitting(pool="p"), reason="purged")
    wait = only(aq)
    assert (wait.step, wait.where) == ("x.a", "dead letter")
    assert wait.said.endswith(": purged")
    [line] = lines(explain(aq, "r"))
    assert re.fullmatch(r"x\.a: is dead letter \S+: purged \(\S+ m?s ago\)", line)


def test_an_ended_run_says_how_and_an_unknown_one_that_it_is(cell: Cell, aq: AgentQ) -> None:
    cell.enqueue(run="r")
    error = b'{"step":"x.a","kind":"ValueError","message":"no"}'
    cell.store.call(
        calls.complete(
            cell.prefix, "", "", "r", KEEP_MS, [effects.end("r", "failed", error, KEEP_MS)]
        )
    )
    found = explain(aq, "r")
    assert (found.state, found.waits) == ("failed", ())
    assert found.said.endswith(": step x.a: ValueError: no")
    with pytest.raises(RunNotFound):
        explain(aq, "never")


@pytest.fixture
def app(session_server: Server, ledger: Ledger) -> Iterator[Running]:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    with running("tests.support.apps.flows", url, ledger, WORKER__SLOTS="1") as found:
        yield found


def test_the_command_says_what_a_real_run_waits_for(app: Running) -> None:
    flow = app.app.aq.get_flow("sleeping")
    app.worker()
    first, second = flow.submit(20.0), flow.submit(20.0)
    wait_until(lambda: app.ledger.lines(f"sleeper began {first.id}"), "the first runs")
    wait_until(lambda: "all 1 slots" in _said(app, second.id), lambda: _said(app, second.id), 20)
    assert "runs on w@test, lease ends in" in _said(app, first.id)
    with home() as user:
        shown = user.run("why", second.id, env=app.variables).stdout
    assert f"run {second.id}: running since " in shown
    assert "tests.support.apps.flows.sleeper: waits in queue shared:normal, place 1 of 1" in shown
    first.cancel()
    second.cancel()
    assert explain(app.app.aq, first.id).said.startswith("cancelled since ")


def _said(app: Running, run: str) -> str:
    return " | ".join(wait.said for wait in explain(app.app.aq, run).waits)
