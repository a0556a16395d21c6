"""What workers have is announced with their lease, and a name that none has is told."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from agentq import AgentQ
from agentq.cli.main import app
from agentq.ops.known import Known, read_known
from agentq.ops.pausing import Kind, pause
from agentq.ops.status import read_status
from agentq.ops.why import explain
from agentq.store.announced import FIELD, MOST_BYTES, announce, names
from tests.integration.test_pause import task
from tests.support.cell import Cell
from tests.support.redis_server import Server

SAID = names(["x.a", "x.b", "celery.chord"], ["buy"])


@pytest.fixture
def cell(url: str) -> Cell:
    return Cell(url)


def test_what_living_workers_announce_is_known_together(cell: Cell) -> None:
    for worker, said in (("one#1", SAID), ("two#2", names(["y.c"], [])), ("dead#3", b"")):
        cell.renew(worker, pools=["p"])
        assert announce(cell.store, worker, said)
    cell.renew("flower#4")  # it takes no work
    cell.expire_lease("dead#3")
    found = read_known(cell.store)
    assert found == Known(
        steps=frozenset({"x.a", "x.b", "y.c"}), flows=frozenset({"buy"}), workers=2
    )
    assert found.has("step", "celery.chord")
    assert found.lacks("step", "y.c") is None
    assert found.lacks("step", "a") == "no worker has step 'a'; did you mean x.a?"
    assert found.lacks("flow", "sell") == "no worker has flow 'sell'"
    assert found.lacks("tenant", "acme") is None


def test_where_one_worker_does_not_say_or_none_lives_no_name_is_said_to_be_unknown(
    cell: Cell,
) -> None:
    assert read_known(cell.store).lacks("step", "nope") is None
    cell.renew("new#1", pools=["p"])
    announce(cell.store, "new#1", SAID)
    cell.renew("old#2", pools=["p"])
    found = read_known(cell.store)
    assert (found.workers, found.silent, found.lacks("step", "nope")) == (2, 1, None)


def test_a_worker_with_too_many_names_says_nothing() -> None:
    assert len(names([f"module.step{number:04}" for number in range(1900)], [])) < MOST_BYTES
    assert names([f"module.step{number:04}" for number in range(2000)], []) == b""


def test_an_announcement_goes_with_the_lease_and_never_stays_for_good(cell: Cell) -> None:
    record = cell.keys.worker("one#1")
    cell.renew("one#1", pools=["p"])
    announce(cell.store, "one#1", SAID)
    cell.renew("one#1", first=False, pools=["p"])
    assert cell.redis("HGET", record, FIELD) == SAID
    cell.release("one#1")
    assert not cell.redis("EXISTS", record)
    announce(cell.store, "one#1", SAID)  # its lease was lost meanwhile
    assert cell.redis("PTTL", record) > 0


def test_a_full_broker_is_announced_to_again_later(breakable_server: Server) -> None:
    cell = Cell(breakable_server.url)
    cell.renew("one#1", pools=["p"])
    breakable_server.client.config_set("maxmemory", 1)
    assert not announce(cell.store, "one#1", SAID)
    breakable_server.client.config_set("maxmemory", 0)
    assert announce(cell.store, "one#1", SAID)


def test_status_tells_a_pause_of_what_no_worker_has(cell: Cell) -> None:
    cell.renew("one#1", pools=["p"])
    announce(cell.store, "one#1", names(["x.b"], ["buy"]))
    paused = {(Kind.STEP, "x.b"), (Kind.STEP, "typo"), (Kind.FLOW, "buy"), (Kind.POOL, "p")}
    for kind, name in paused:
        pause(cell.store, kind, name)
    found = read_status(cell.store).pauses
    assert {(one.kind, one.name) for one in found} == paused
    assert [one.name for one in found if one.unknown] == ["typo"]


def test_status_tells_parked_work_that_a_worker_has_by_now(cell: Cell) -> None:
    cell.enqueue(task("a"), task("b"), task("c"))
    cell.renew("old#1", pools=["p"])
    lacking = ("task x.a", "task y.c", "message version 2")
    for handed, name in zip(cell.fetch("old#1"), lacking, strict=True):
        cell.park(handed, name, after_ms=60_000)
    announce(cell.store, "old#1", names(["x.a"], []))
    known = {one.lacking: one.known for one in read_status(cell.store).parked}
    assert known == {"task x.a": True, "task y.c": False, "message version 2": False}


def test_why_tells_that_no_worker_has_the_step(
    cell: Cell, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTQ_BROKER__URL", url)
    cell.renew("one#1", pools=["p"])
    announce(cell.store, "one#1", names(["x.b"], []))
    cell.enqueue(task("a", run="r"), run="r")
    cell.enqueue(task("b", "x.b", run="s"), run="s")
    aq, place = AgentQ("known"), "waits in queue p:normal, place"
    [waits], [goes_on] = explain(aq, "r").waits, explain(aq, "s").waits
    assert waits.said == f"{place} 1 of 2; no worker has step 'x.a'; did you mean x.b?"
    assert (goes_on.said, goes_on.stuck) == (f"{place} 2 of 2", False)
    assert waits.stuck


def test_a_purge_that_moved_nothing_tells_that_no_worker_has_the_step(
    cell: Cell, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTQ_BROKER__URL", url)
    cell.renew("one#1", pools=["p"])
    announce(cell.store, "one#1", names(["x.b"], []))
    said = CliRunner().invoke(app, ["purge", "--step", "b", "--yes"])
    assert said.stdout == "0 messages moved to the dead letters\n"
    assert said.stderr == "note: no worker has step 'b'; did you mean x.b?\n"
    assert CliRunner().invoke(app, ["purge", "--step", "x.b", "--yes"]).stderr == ""
