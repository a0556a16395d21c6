"""New work is refused in time and says why; a run keeps to its budget; producers feel the pressure."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import orjson
import pytest
from celery import group

from agentq import AgentQ
from agentq.errors import DefinitionError, QueueFull, RunFailed
from agentq.flows.flow import Flow
from agentq.store import effects
from agentq.store.calls import Accepted, Full
from tests.support.cell import Cell, Handed, message
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until

WORKER = "w1"


@pytest.fixture
def cell(url: str) -> Iterator[Cell]:
    cell = Cell(url)
    cell.renew(WORKER)
    yield cell
    cell.store.close()


def big(id_: str, size: int = 20_000, **fields: Any) -> Any:
    return message(id_, **fields)._replace(body=b"x" * size)


def after(cell: Cell, ms: int) -> None:
    """Return once the server's clock is *ms* further."""
    until = cell.now_ms() + ms
    wait_until(lambda: cell.now_ms() >= until, f"{ms} ms")


# -- the caps -----------------------------------------------------------------------------------------


def test_a_lane_has_a_cap_in_bytes_and_has_room_again_when_it_drains(cell: Cell) -> None:
    answers = [cell.enqueue(big(f"m{i}"), limit_bytes=200_000) for i in range(12)]
    refused = next(answer for answer in answers if isinstance(answer, Full))
    accepted = answers.index(refused)
    assert 8 <= accepted <= 10
    assert answers[accepted:] == [refused] * (12 - accepted)
    assert (refused.reason, refused.limit) == ("bytes", 200_000)
    assert 200_000 <= refused.depth < 230_000
    other = cell.enqueue(big("h", lane="high"), lane="high", limit_bytes=200_000)
    assert isinstance(other, Accepted)
    handed = cell.fetch(WORKER, 9, lanes=["normal"])
    for one in handed:
        cell.complete(one)
    assert isinstance(cell.enqueue(big("again"), limit_bytes=200_000), Accepted)


def test_a_tenant_has_a_cap_of_unfinished_runs(cell: Cell) -> None:
    def run(name: str, tenant: str = "acme") -> Any:
        work = message(name, run=name)
        return cell.enqueue(work, run=name, tenant=tenant, max_per_tenant=2)

    assert [run("a"), run("b")] == [Accepted(0, 0), Accepted(1, 0)]
    refused = run("c")
    assert (refused.reason, refused.depth, refused.limit) == ("tenant", 2, 2)
    assert run("d", "other") == Accepted(2, 0)
    assert cell.cancel("a") == 1
    assert cell.cancel("a") == 0
    assert run("c") == Accepted(3, 0)
    for name in ("b", "c", "d"):
        cell.cancel(name)
    assert not cell.redis("EXISTS", f"{cell.prefix}tenants")


def test_admission_stops_at_80_percent_of_maxmemory_and_started_work_goes_on(
    breakable_server: Server,
) -> None:
    cell = Cell(breakable_server.url)
    cell.renew(WORKER)
    cell.enqueue(message("a", run="r"), run="r")
    [first] = cell.fetch(WORKER)
    used = int(breakable_server.client.info("memory")["used_memory"])
    maxmemory = int(used / 0.85)
    breakable_server.client.config_set("maxmemory", maxmemory)
    after(cell, 250)
    refused = cell.enqueue(message("b", run="q"), run="q")
    assert isinstance(refused, Full)
    assert (refused.reason, refused.limit) == ("memory", int(maxmemory * 0.8))
    assert refused.depth >= refused.limit
    assert cell.complete(first, effects.put(message("next", run="r")), run="r") == "ok"
    assert [one.id for one in cell.fetch(WORKER)] == ["next"]
    breakable_server.client.config_set("maxmemory", 0)
    assert isinstance(cell.enqueue(message("b", run="q"), run="q"), Accepted)
    cell.store.close()


def test_successors_of_accepted_work_are_never_refused(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), run="r")
    [first] = cell.fetch(WORKER)
    for number in range(3):
        cell.enqueue(message(f"other{number}"), limit=4)
    assert isinstance(cell.enqueue(message("full"), limit=4), Full)
    next_ones = [effects.put(message(f"next{i}", run="r")) for i in range(5)]
    assert cell.complete(first, *next_ones, run="r") == "ok"
    assert len(cell.fetch(WORKER)) == 8


def test_what_is_told_comes_from_what_the_pool_completes(cell: Cell) -> None:
    for number in range(99):
        cell.enqueue(message(f"m{number}"))
    after(cell, 250)
    told = cell.enqueue(message("m99"), limit=200)
    assert isinstance(told, Accepted)
    assert (told.load.fill, told.load.waiting, told.load.rate) == (0.495, 99, None)
    assert told.load.expected_wait is None
    after(cell, 1000)
    for one in cell.fetch(WORKER, 40):
        cell.complete(one)
    told = cell.enqueue(message("m100"), limit=200)
    assert isinstance(told, Accepted)
    assert told.load.waiting == 60
    assert told.load.rate is not None
    assert 20 < told.load.rate < 40
    assert told.load.expected_wait is not None
    assert told.load.expected_wait.total_seconds() == pytest.approx(60 / told.load.rate)
    refused = cell.enqueue(message("m101"), limit=50)
    assert isinstance(refused, Full)
    assert refused.retry_after.total_seconds() == pytest.approx(7 / told.load.rate, abs=0.002)


def test_a_pool_that_completes_nothing_says_come_back_in_a_minute(cell: Cell) -> None:
    for number in range(3):
        cell.enqueue(message(f"m{number}"))
    for _ in range(2):
        after(cell, 1000)
        refused = cell.enqueue(message("x"), limit=3)
    assert isinstance(refused, Full)
    assert refused.retry_after.total_seconds() == 60


# -- budgets --------------------------------------------------------------------------------------


def failure(cell: Cell, run: str) -> tuple[str, str]:
    assert cell.run_state(run) == "failed"
    found = orjson.loads(cell.redis("HGET", cell.keys.run(run), "result"))
    return found["kind"], found["message"]


def fan_out(width: int, *, run: str = "r", join: str = "j", size: int = 10) -> Any:
    members = [big(f"{join}{i}", size, run=run, join=f"{join}|{i}") for i in range(width)]
    body = [message(f"{join}-body", run=run)]
    return effects.join(
        join, width=width, at_once=5, ttl_ms=60_000, run=run, body=body, members=members
    )


def started(cell: Cell, run: str = "r", **budget: int) -> Handed:
    cell.enqueue(message(run, run=run), run=run, **budget)  # type: ignore[arg-type]
    return next(one for one in cell.fetch(WORKER) if one.id == run)


def test_the_members_of_all_fan_outs_of_a_run_are_counted_together(cell: Cell) -> None:
    first = started(cell, max_members=6)
    other = started(cell, "other", max_members=6)
    assert cell.complete(first, fan_out(4), run="r") == "ok"
    handed = cell.fetch(WORKER)
    assert len(handed) == 4
    assert cell.complete(handed[0], fan_out(3, join="k"), run="r") == "ok"
    kind, text = failure(cell, "r")
    assert kind == "RunTooLarge"
    assert "7 members; runs.max_members (or max_members= of the flow) is 6" in text
    assert cell.fetch(WORKER) == []
    assert not cell.redis("EXISTS", cell.keys.join("k"))
    assert cell.complete(handed[1], effects.part("j", 1, b"1"), run="r") == "ended"
    assert cell.complete(other, fan_out(6, run="other", join="o"), run="other") == "ok"
    assert cell.run_state("other") == "running"


def test_messages_and_outcomes_of_a_run_are_counted_in_bytes(cell: Cell) -> None:
    first = started(cell, max_bytes=10_000)
    assert cell.complete(first, fan_out(2, size=2000), run="r") == "ok"
    used = int(cell.redis("HGET", cell.keys.run("r"), "bytes"))
    assert used == 2 * (2000 + len(b'{"h":1}')) + len(b'{"h":1}["b"]')
    one, two = cell.fetch(WORKER)
    assert cell.complete(one, effects.part("j", 0, b"y" * 3000), run="r") == "ok"
    assert cell.run_state("r") == "running"
    assert cell.complete(two, effects.part("j", 1, b"y" * 3000), run="r") == "ok"
    kind, text = failure(cell, "r")
    assert kind == "RunTooLarge"
    assert "runs.max_bytes (or max_bytes= of the flow) is 10000" in text


def test_a_staged_fan_out_beyond_the_budget_is_dropped_and_not_opened(cell: Cell) -> None:
    first = started(cell, max_bytes=10_000)
    members = [big(f"m{i}", 900, run="r", join=f"j|{i}") for i in range(20)]
    cell.stage("g", members)
    opened = effects.join(
        "j", width=20, at_once=5, ttl_ms=60_000, run="r", body=[message("body", run="r")],
        members="g", staged_bytes=sum(len(m.headers) + len(m.body) for m in members),
    )  # fmt: skip
    assert cell.complete(first, opened, run="r") == "ok"
    assert failure(cell, "r")[0] == "RunTooLarge"
    assert not cell.redis("EXISTS", cell.keys.staged("g"), cell.keys.join("j"))
    assert cell.fetch(WORKER) == []


@pytest.fixture(scope="module")
def budgets(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    ledger = Ledger(tmp_path_factory.mktemp("budgets") / "ledger")
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    with running("tests.support.apps.budgets", url, ledger) as app:
        app.worker()
        yield app
        app.app.aq.store.close()


@pytest.mark.parametrize(
    ("flow", "within", "beyond", "said"),
    [
        ("wide", 5, 6, "asks for 6 members; flow 'wide' allows 5 (max_members=)"),
        ("nested", 4, 5, "fan-outs together have 15 members; runs.max_members"),
        ("heavy", 20_000, 24_700, "runs.max_bytes (or max_bytes= of the flow) is 50000"),
    ],
)
def test_a_flow_has_its_own_budget_and_a_run_beyond_it_harms_no_other(
    budgets: Running, flow: str, within: int, beyond: int, said: str
) -> None:
    declared = budgets.app.aq.get_flow(flow)
    too_large, fine = declared.submit(beyond), declared.submit(within)
    with pytest.raises(RunFailed) as caught:
        too_large.result(timeout=10)
    assert caught.value.kind == "RunTooLarge"
    assert said in caught.value.message
    assert fine.result(timeout=10) > 0


def test_a_budget_of_nothing_is_refused_where_it_is_declared() -> None:
    aq = AgentQ("declared", overrides={"broker.url": "agentq://127.0.0.1:1"})

    async def anything(_: object) -> None: ...

    with pytest.raises(DefinitionError, match="max_members=0 is not a whole number"):
        aq.flow("f", aq.step(name="a")(anything), max_members=0)


# -- what a producer feels --------------------------------------------------------------------------


class Producer:
    """An app whose pool ``p`` has no worker but what the test takes out by hand."""

    def __init__(self, url: str, limit: int) -> None:
        overrides = {"broker.url": url, "broker.max_length": limit, "pools.p.purpose": "shared"}
        self.aq = AgentQ("pressed", overrides=overrides)

        async def anything(_: object) -> None: ...

        step = self.aq.step(name="anything", pool="p")(anything)
        self.step: Any = step
        self.flow: Flow = self.aq.flow("one", step)
        self.cell = Cell(url)
        self.cell.renew(WORKER)
        self.deepest = 0

    def depth(self) -> int:
        return int(self.cell.redis("XLEN", self.cell.keys.stream("p", "normal")))

    def drain(self, count: int) -> int:
        self.deepest = max(self.deepest, self.depth())
        handed = self.cell.fetch(WORKER, count) if count else []
        for one in handed:
            self.cell.complete(one)
        return len(handed)

    def close(self) -> None:
        self.cell.store.close()
        self.aq.store.close()

    @contextmanager
    def drained(self, per_second: int) -> Iterator[None]:
        """Complete so much while the block runs."""
        ended = threading.Event()

        def work() -> None:
            began, done = time.monotonic(), 0
            while not ended.wait(0.02):
                due = int((time.monotonic() - began) * per_second)
                self.drain(due - done)
                done = due

        thread = threading.Thread(target=work, name="drain")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.fixture
def pressed(url: str) -> Iterator[Producer]:
    producer = Producer(url, limit=40)
    yield producer
    producer.close()


def test_a_handle_tells_how_full_the_queue_is_and_how_long_it_takes(pressed: Producer) -> None:
    handles = [pressed.flow.submit(i) for i in range(40)]
    assert [handle.fill for handle in handles] == [i / 40 for i in range(40)]
    assert handles[0].expected_wait is not None
    assert handles[0].expected_wait.total_seconds() == 0
    assert handles[39].expected_wait is None  # nothing was completed yet
    with pytest.raises(QueueFull) as caught:
        pressed.flow.submit(41)
    assert (caught.value.pool, caught.value.reason) == ("p", "length")
    assert (caught.value.depth, caught.value.limit) == (40, 40)


def test_submit_waits_for_room_until_its_limit(pressed: Producer) -> None:
    pressed.cell.enqueue(*(message(f"m{i}") for i in range(40)))
    began = time.monotonic()
    with pytest.raises(QueueFull):
        pressed.flow.submit(1, wait="300ms")
    assert 0.3 <= time.monotonic() - began < 1
    with pressed.drained(per_second=20):
        handle = pressed.flow.submit(1, wait="20s", key="k")
    assert handle.fill is not None
    assert not handle.duplicate


def test_asubmit_waits_for_room_and_leaves_the_loop_free(pressed: Producer) -> None:
    pressed.cell.enqueue(*(message(f"m{i}") for i in range(40)))

    async def wait() -> Any:
        waiting = asyncio.ensure_future(pressed.flow.asubmit(1, wait="20s"))
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
        pressed.drain(10)
        handle = await waiting
        await pressed.aq.aclose()
        return handle

    assert asyncio.run(wait()).fill <= 31 / 40


def test_submit_many_slows_down_instead_of_running_into_the_cap(pressed: Producer) -> None:
    with pressed.drained(per_second=60):
        handles = pressed.flow.submit_many(range(200))
    assert len({handle.id for handle in handles}) == 200
    assert 20 <= pressed.deepest < 40


def test_submit_many_goes_on_behind_what_was_refused(pressed: Producer) -> None:
    pressed.cell.enqueue(*(message(f"m{i}") for i in range(40)))
    with pytest.raises(QueueFull) as caught:
        pressed.flow.submit_many(range(3))
    assert caught.value.accepted == []
    with pressed.drained(per_second=100):
        handles = pressed.flow.submit_many(range(30), keys=[f"k{i}" for i in range(30)], wait="20s")
    assert len({handle.id for handle in handles}) == 30
    assert not any(handle.duplicate for handle in handles)


def test_a_paced_producer_keeps_below_the_cap(pressed: Producer) -> None:
    with pressed.drained(per_second=60):
        for number in pressed.aq.paced(range(150)):
            pressed.flow.submit(number)
    assert 20 <= pressed.deepest < 40


def test_a_paced_producer_on_an_event_loop_keeps_below_the_cap(pressed: Producer) -> None:
    async def numbers() -> Any:
        for number in range(150):
            yield number

    async def produce() -> None:
        async for number in pressed.aq.paced(numbers()):
            await pressed.flow.asubmit(number)
        async for number in pressed.aq.paced([150]):
            await pressed.flow.asubmit(number)
        await pressed.aq.aclose()

    with pressed.drained(per_second=60):
        asyncio.run(produce())
    assert 20 <= pressed.deepest < 40


# -- groups of ordinary tasks ---------------------------------------------------------------------


@pytest.mark.parametrize("members", [30, 600])
def test_a_group_is_accepted_whole_or_not_at_all(url: str, members: int) -> None:
    producer = Producer(url, limit=members + 10)
    [task, tasks] = producer.step.si(1), group(producer.step.si(i) for i in range(members))
    tasks.delay()
    task.delay()
    with pytest.raises(QueueFull, match=r"broker\.max_length") as caught:
        tasks.delay()
    assert caught.value.depth >= members + 10
    staged = [key for key in producer.cell.all_keys() if ":stage:" in key]
    assert staged == []
    taken = 0
    while handed := producer.drain(500):
        taken += handed
    assert taken == members + 1
    tasks.delay()
    producer.close()


@pytest.mark.parametrize("members", [3, 600])
def test_a_group_that_is_sent_again_under_the_same_ids_is_one_group(url: str, members: int) -> None:
    producer = Producer(url, limit=10_000)
    named = [producer.step.si(i).set(task_id=f"member {i}") for i in range(members)]
    group(named).delay()
    group(named).delay()
    assert [key for key in producer.cell.all_keys() if ":stage:" in key] == []
    taken = 0
    while handed := producer.drain(500):
        taken += handed
    assert taken == members
    producer.close()
