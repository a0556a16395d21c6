"""Pauses: nothing of it starts, everything keeps its place, and goes on in order."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from agentq.broker import envelope
from agentq.ops.pausing import Kind, Resumed, pause, resume
from agentq.ops.status import read_status
from agentq.store import calls
from agentq.store.effects import Message
from tests.support.cell import Cell
from tests.support.command_line import Home, home
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import running
from tests.support.waiting import wait_until

WORKER = "w1"


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew(WORKER)
    return cell


def task(id_: str, name: str = "x.a", *, flow: str = "", run: str = "") -> Message:
    ours = {"aq": {"v": 1, "flow": flow, "run": run, "node": 0, "path": []}} if flow else {}
    head = envelope.pack({"task": name, "id": id_, **ours}, {})
    return Message("p", "normal", 0, id_, run, "", head, b"[[],{},null]")


def ids(cell: Cell, slots: int = 100) -> list[str]:
    return [one.id for one in cell.fetch(WORKER, slots)]


def test_a_paused_pool_hands_out_nothing_and_loses_nothing(cell: Cell) -> None:
    cell.enqueue(*(task(f"{n}") for n in range(5)))
    assert pause(cell.store, Kind.POOL, "p") is True
    assert pause(cell.store, Kind.POOL, "p") is False
    assert ids(cell) == []
    [shown] = read_status(cell.store).pauses
    assert (shown.kind, shown.name, shown.aside, shown.ending) == ("pool", "p", 0, False)
    assert 0 <= shown.for_ms < 30_000
    assert resume(cell.store, Kind.POOL, "p") == Resumed(paused=True, brought_back=0)
    assert resume(cell.store, Kind.POOL, "p") == Resumed(paused=False, brought_back=0)
    assert ids(cell) == ["0", "1", "2", "3", "4"]


def test_resuming_a_pool_wakes_who_waits_for_work(cell: Cell) -> None:
    pause(cell.store, Kind.POOL, "p")
    assert ids(cell) == []
    resume(cell.store, Kind.POOL, "p")
    assert cell.redis("LLEN", cell.keys.wake(WORKER)) == 1


def test_a_paused_step_lets_others_pass_and_goes_on_first_and_in_order(cell: Cell) -> None:
    pause(cell.store, Kind.STEP, "x.a")
    cell.enqueue(*(task(f"a{n}") for n in range(3)), task("b", "x.b"))
    assert ids(cell) == ["b"]
    assert read_status(cell.store).pauses[0].aside == 3
    cell.enqueue(task("a3"), task("c", "x.b"))
    assert resume(cell.store, Kind.STEP, "x.a") == Resumed(paused=True, brought_back=3)
    handed = cell.fetch(WORKER)
    assert [one.id for one in handed] == ["a0", "a1", "a2", "a3", "c"]
    assert {(one.attempts, one.retries) for one in handed} == {(0, 0)}


def test_while_a_pause_is_lifted_nothing_overtakes_what_was_put_aside(cell: Cell) -> None:
    pause(cell.store, Kind.STEP, "x.a")
    cell.enqueue(*(task(f"{n}") for n in range(4)))
    assert ids(cell) == []
    cell.store.call(calls.resume(cell.prefix, "step:x.a", 2))  # and its caller dies
    cell.enqueue(task("4"))
    assert ids(cell) == ["0", "1"]
    [shown] = read_status(cell.store).pauses
    assert (shown.ending, shown.aside) == (True, 3)
    cell.promote()  # any worker goes on with it
    assert ids(cell) == ["2", "3", "4"]
    assert read_status(cell.store).pauses == ()


def test_a_pause_begun_again_while_it_is_lifted_holds(cell: Cell) -> None:
    pause(cell.store, Kind.STEP, "x.a")
    cell.enqueue(*(task(f"{n}") for n in range(3)))
    assert ids(cell) == []
    cell.store.call(calls.resume(cell.prefix, "step:x.a", 1))
    assert pause(cell.store, Kind.STEP, "x.a") is True
    assert ids(cell) == []
    assert read_status(cell.store).pauses[0].aside == 3


def test_a_flow_and_a_tenant_are_paused_each_on_its_own(cell: Cell) -> None:
    for run, tenant in (("r1", "acme"), ("r2", "other")):
        cell.enqueue(run=run)
        cell.redis("HSET", cell.keys.run(run), "tenant", tenant)
    cell.enqueue(
        task("acme f", run="r1", flow="f"), task("other f", run="r2", flow="f"),
        task("other g", run="r2", flow="g"), task("plain"),
    )  # fmt: skip
    pause(cell.store, Kind.TENANT, "acme")
    pause(cell.store, Kind.FLOW, "f")
    assert ids(cell) == ["other g", "plain"]
    resume(cell.store, Kind.FLOW, "f")
    assert ids(cell) == ["other f"]
    resume(cell.store, Kind.TENANT, "acme")
    assert ids(cell) == ["acme f"]


def test_a_fetch_that_only_met_paused_work_asks_again(cell: Cell) -> None:
    pause(cell.store, Kind.STEP, "x.a")
    cell.enqueue(*(task(f"{n}") for n in range(3)), task("b", "x.b"))
    assert ids(cell, 2) == []
    assert cell.redis("LLEN", cell.keys.wake(WORKER)) == 1
    assert ids(cell, 2) == ["b"]


def test_a_fetch_beside_a_pause_takes_a_hundred_and_asks_again(cell: Cell) -> None:
    pause(cell.store, Kind.STEP, "x.other")
    cell.enqueue(*(task(f"{n}") for n in range(150)))
    assert len(ids(cell, 256)) == 100
    assert cell.redis("LLEN", cell.keys.wake(WORKER)) == 1
    assert len(ids(cell, 256)) == 50


@pytest.mark.parametrize("name", ["shop.pay", "näh.größe", 'odd"name', "a b"])
def test_a_step_of_any_name_is_paused(cell: Cell, name: str) -> None:
    pause(cell.store, Kind.STEP, name)
    cell.enqueue(task("a", name), task("b", f"{name}2"))
    assert ids(cell) == ["b"]


def test_bytes_that_are_no_message_are_no_paused_step(cell: Cell) -> None:
    pause(cell.store, Kind.STEP, "x.a")
    stream = cell.keys.stream("p", "normal")
    cell.enqueue(task("first"))
    for head in (b"", b"null", b"[" * 5000, b"x" * 100_000, b'{"headers":{"task":5}}'):
        cell.redis("XADD", stream, "*", "i", "odd", "r", "", "j", "", "h", head, "b", b"")
    assert ids(cell) == ["odd"] * 5


def test_a_delayed_message_is_put_aside_when_it_is_due(cell: Cell) -> None:
    cell.enqueue(task("a")._replace(due_ms=-1))
    pause(cell.store, Kind.STEP, "x.a")
    wait_until(lambda: cell.promote()[0], "it is due")
    assert ids(cell) == []
    assert read_status(cell.store).pauses[0].aside == 1


@pytest.mark.parametrize("options", [(), ("-P", "prefork", "-c", "1")], ids=["ours", "prefork"])
def test_workers_heed_a_pause_at_once_and_go_on_within_a_second(
    session_server: Server, ledger: Ledger, options: tuple[str, ...]
) -> None:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    with running("tests.support.apps.faults", url, ledger) as app:
        app.worker(options=("-Q", "critical,shared", *options))
        store, flow = app.app.aq.store, app.app.aq.get_flow("one")
        assert flow.submit(0).result(timeout=10) == 0
        pause(store, Kind.STEP, "tests.support.apps.faults.quick")
        held = flow.submit_many(range(1, 21))
        wait_until(lambda: read_status(store).pauses[0].aside == 20, "all are put aside")
        assert len(ledger.lines("quick")) == 1
        assert resume(store, Kind.STEP, "tests.support.apps.faults.quick").brought_back == 20
        assert [run.result(timeout=5) for run in held] == list(range(1, 21))
        pause(store, Kind.POOL, "shared")
        last = flow.submit(21)
        assert app.app.aq.get_flow("chat")  # the pool of the other steps is not asked for anything
        assert len(ledger.lines("quick")) == 21
        resume(store, Kind.POOL, "shared")
        assert last.result(timeout=1) == 21


_SHOP = """
from agentq import AgentQ

aq = AgentQ("shop")

@aq.step
async def pay(_: object) -> None: ...
"""


@pytest.fixture
def user() -> Iterator[Home]:
    with home() as found:
        yield found


def test_the_commands_pause_show_and_resume(user: Home, cell: Cell, url: str) -> None:
    env = {"AGENTQ_BROKER__URL": url}
    paused = user.run("pause", "step", "x.a", env=env)
    assert paused.stdout == "step x.a paused\n"
    assert "whether there is a step 'x.a' is not known" in paused.stderr
    cell.enqueue(task("a"))
    assert ids(cell) == []
    assert "paused step x.a for " in user.run("status", env=env).stdout
    assert user.json("resume", "step", "x.a", env=env) == {
        "kind": "step", "name": "x.a", "resumed": True, "messages": 1,
    }  # fmt: skip
    assert user.run("pause", "queue", "x", env=env).returncode == 2


def test_a_name_that_the_named_app_lacks_is_not_paused_unless_it_is_meant(
    user: Home, cell: Cell, url: str
) -> None:
    (user.work / "shop.py").write_text(_SHOP)
    env = {"AGENTQ_BROKER__URL": url}
    typo = ("pause", "step", "pay", "-A", "shop:aq")
    refused = user.run(*typo, env=env)
    assert refused.returncode == 2
    assert "did you mean shop.pay?" in " ".join(refused.stderr.replace("│", " ").split())
    assert cell.redis("HLEN", cell.keys.paused()) == 0
    assert user.run(*typo, "--anyway", env=env).stdout == "step pay paused\n"
    assert cell.redis("HKEYS", cell.keys.paused()) == [b"step:pay"]
