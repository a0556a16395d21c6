"""What a real kombu producer put into Redis lists is moved here, and back, each task once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import pytest
from celery import Celery
from kombu import Connection

from agentq import AgentQ
from agentq.ops.migrate import Migrated, from_celery, to_celery
from agentq.ops.status import read_status
from agentq.store import calls, effects
from agentq.store.effects import Message
from agentq.store.kombu_lists import KombuLists
from tests.support.cell import Cell
from tests.support.redis_server import Server, private_server
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def foreign() -> Iterator[Server]:
    with private_server() as server:
        yield server


@pytest.fixture
def stock(foreign: Server) -> Iterator[Celery]:
    """A stock Celery on a Redis of its own."""
    foreign.flush()
    url = f"redis+socket://{foreign.embedded.socket_path}"
    app = Celery("stock", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True)
    yield app
    app.close()


@pytest.fixture
def address(foreign: Server) -> str:
    return f"unix://{foreign.embedded.socket_path}"


@pytest.fixture
def aq(url: str, monkeypatch: pytest.MonkeyPatch) -> AgentQ:
    monkeypatch.setenv("AGENTQ_BROKER__URL", url)
    monkeypatch.setenv("AGENTQ_ENV", "test")
    return AgentQ("target")


def send(stock: Celery, number: int, **options: object) -> None:
    stock.send_task("shop.pay", (number,), {"text": "ü"}, task_id=f"t{number}", **options)


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, method: str, *, done: bool) -> Iterator[None]:
    """A move within dies at its first call of *method*, once that is *done* or before."""
    original = getattr(KombuLists, method)

    def dying(self: KombuLists, *args: object) -> None:
        if done:
            original(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KombuLists, method, dying)
        with pytest.raises(KeyboardInterrupt):
            yield


def waiting(url: str, *, lanes: tuple[str, ...] = ("high", "normal", "low", "long")) -> list[str]:
    cell = Cell(url)
    found = []
    for lane in lanes:
        for key in (cell.keys.returned("shared", lane), cell.keys.stream("shared", lane)):
            entries = cell.redis("XRANGE", key, "-", "+")
            found += [
                f"{lane} {flat[flat.index(b'i') + 1].decode()}" for _, flat in map(_pair, entries)
            ]
    return found


def _pair(entry: tuple[bytes, object]) -> tuple[bytes, list[bytes]]:
    id_, fields = entry
    if isinstance(fields, dict):
        return id_, [part for pair in fields.items() for part in pair]
    return id_, list(fields)  # type: ignore[call-overload]


def test_what_waits_moves_with_its_priority_and_in_order(
    stock: Celery, address: str, aq: AgentQ, url: str
) -> None:
    for number in range(5):
        send(stock, number)
    send(stock, 5, priority=9)
    send(stock, 6, priority=3)
    send(stock, 7, queue="mail")
    send(stock, 8, countdown=600)
    assert from_celery(aq, address, ["celery"], pool="shared", unacked=False) == Migrated(8, 0)
    assert waiting(url) == [*(f"high t{n}" for n in range(5)), "normal t6", "long t5"]
    assert read_status(aq.store).delayed == 1
    assert from_celery(aq, address, ["mail", "celery"], pool="shared", unacked=False) == Migrated(
        1, 0
    )


def test_a_moved_task_runs_as_it_was_sent(
    stock: Celery, address: str, aq: AgentQ, url: str
) -> None:
    send(stock, 1)
    from_celery(aq, address, ["celery"], pool="shared", unacked=False)
    cell = Cell(url)
    [(_, fields)] = map(_pair, cell.redis("XRANGE", cell.keys.stream("shared", "high"), "-", "+"))
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    args, kwargs, _ = orjson.loads(found[b"b"])
    assert (args, kwargs) == ([1], {"text": "ü"})
    assert orjson.loads(found[b"h"])["headers"]["task"] == "shop.pay"


def test_a_move_killed_between_copy_and_delete_doubles_nothing(
    stock: Celery, address: str, aq: AgentQ, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        send(stock, number)

    with killed(monkeypatch, "delete", done=False):
        from_celery(aq, address, ["celery"], pool="shared", unacked=False)
    assert len(waiting(url)) == 1
    assert from_celery(aq, address, ["celery"], pool="shared", unacked=False) == Migrated(10, 0)
    assert waiting(url) == [f"high t{n}" for n in range(10)]


def test_there_and_back_and_there_again_loses_nothing(
    stock: Celery, address: str, aq: AgentQ, url: str, foreign: Server
) -> None:
    for number in range(5):
        send(stock, number)
    for _ in range(2):
        assert from_celery(aq, address, ["celery"], pool="shared", unacked=False) == Migrated(5, 0)
        assert waiting(url) == [f"high t{n}" for n in range(5)]
        assert to_celery(aq, address, ["shared"], queue="celery") == Migrated(5, 0)
        assert waiting(url) == []
        assert foreign.client.llen("celery") == 5
    assert foreign.client.keys("agentq:*") == []


def test_a_task_id_that_comes_again_is_another_message_in_both_directions(
    stock: Celery, address: str, aq: AgentQ, url: str, foreign: Server
) -> None:
    aq.celery.send_task("shop.pay", (1,), task_id="t1", queue="shared", priority=0)
    for moved in (1, 2):
        for _ in range(moved):
            send(stock, 1)
        done = from_celery(aq, address, ["celery"], pool="shared", unacked=False)
        assert done == Migrated(moved, 0)
    assert waiting(url) == ["high t1"] * 4
    assert to_celery(aq, address, ["shared"], queue="celery") == Migrated(4, 0)
    assert foreign.client.llen("celery") == 4


def test_the_same_message_restored_from_a_backup_moves_again(
    stock: Celery, address: str, aq: AgentQ, url: str, foreign: Server
) -> None:
    send(stock, 1)
    backup = foreign.client.lrange("celery", 0, -1)
    for _ in range(2):
        assert from_celery(aq, address, ["celery"], pool="shared", unacked=False) == Migrated(1, 0)
        foreign.client.lpush("celery", *backup)
    assert waiting(url) == ["high t1"] * 2


def test_a_task_that_is_sent_again_after_its_move_died_is_not_taken_for_its_copy(
    stock: Celery, address: str, aq: AgentQ, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(stock, 1)
    with killed(monkeypatch, "delete", done=False):
        from_celery(aq, address, ["celery"], pool="shared", unacked=False)
    send(stock, 1)
    assert from_celery(aq, address, ["celery"], pool="shared", unacked=False) == Migrated(2, 0)
    assert waiting(url) == ["high t1"] * 2


def test_what_a_stopped_worker_had_taken_moves_when_asked(
    stock: Celery, address: str, aq: AgentQ, url: str, foreign: Server
) -> None:
    send(stock, 1)
    send(stock, 2)
    with Connection(stock.conf.broker_url) as connection:
        queue = connection.SimpleQueue("celery")
        queue.get(timeout=5)  # taken and never acknowledged
        connection.default_channel.qos._delivered.clear()  # noqa: SLF001 -- as if it had been killed
        queue.consumer.channel.qos._delivered.clear()  # noqa: SLF001
    wait_until(lambda: foreign.client.hlen("unacked") >= 1, "one is unacknowledged")
    taken = foreign.client.hlen("unacked")
    assert from_celery(aq, address, ["celery"], pool="shared", unacked=False).moved == 2 - taken
    assert from_celery(aq, address, ["celery"], pool="shared", unacked=True).moved == taken
    assert sorted(waiting(url)) == ["high t1", "high t2"]
    assert foreign.client.zcard("unacked_index") == 0


def test_what_is_no_message_stays(address: str, aq: AgentQ, foreign: Server, stock: Celery) -> None:
    foreign.client.lpush("celery", b"hello", b'{"body":""}')
    send(stock, 1)
    assert from_celery(aq, address, ["celery"], pool="shared", unacked=False) == Migrated(1, 2)
    assert foreign.client.llen("celery") == 2


def test_back_again_each_task_is_pushed_once_and_a_stock_consumer_reads_it(
    stock: Celery, address: str, aq: AgentQ, url: str, foreign: Server
) -> None:
    for number in range(5):
        aq.celery.send_task("shop.pay", (number,), task_id=f"b{number}", queue="shared")
    aq.celery.send_task("shop.pay", (9,), task_id="b9", queue="shared", priority=9)
    cell = Cell(url)
    cell.enqueue(run="r")
    cell.redis(
        "XADD",
        cell.keys.stream("shared", "low"),
        "*",
        "i",
        "s",
        "r",
        "r",
        "j",
        "",
        "h",
        "",
        "b",
        "",
    )
    assert to_celery(aq, address, ["shared"], queue="celery") == Migrated(6, 1)
    assert waiting(url) == ["low s"]
    assert foreign.client.llen("celery\x06\x163") == 5
    with Connection(stock.conf.broker_url) as connection:
        queue = connection.SimpleQueue("celery")
        got = [queue.get(timeout=5) for _ in range(6)]
        for message in got:
            message.ack()
        assert [message.headers["id"] for message in got] == ["b0", "b1", "b2", "b3", "b4", "b9"]
        assert got[-1].payload[0] == [9]


def test_going_back_killed_between_push_and_ack_doubles_nothing(
    address: str,
    aq: AgentQ,
    url: str,
    foreign: Server,
    stock: Celery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert stock
    for number in range(5):
        aq.celery.send_task("shop.pay", (number,), task_id=f"b{number}", queue="shared")
    with killed(monkeypatch, "push", done=True):
        to_celery(aq, address, ["shared"], queue="celery")
    assert to_celery(aq, address, ["shared"], queue="celery") == Migrated(5, 0)
    assert foreign.client.llen("celery\x06\x163") == 5
    assert waiting(url) == []


def test_going_back_after_a_death_equal_entries_born_together_are_each_pushed(
    address: str,
    aq: AgentQ,
    url: str,
    foreign: Server,
    stock: Celery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert stock
    aq.celery.send_task("shop.pay", (1,), task_id="b1", queue="shared", priority=0)
    cell = Cell(url)
    key = cell.keys.stream("shared", "high")
    [(entry, fields)] = map(_pair, cell.redis("XRANGE", key, "-", "+"))
    at, _, number = entry.decode().partition("-")
    cell.redis("XADD", key, f"{at}-{int(number) + 1}", *fields)
    with killed(monkeypatch, "push", done=True):
        to_celery(aq, address, ["shared"], queue="celery")
    assert to_celery(aq, address, ["shared"], queue="celery") == Migrated(2, 0)
    assert foreign.client.llen("celery") == 2


def test_going_back_hands_back_all_it_left_however_much(
    address: str, aq: AgentQ, url: str, stock: Celery
) -> None:
    assert stock
    count = 2 * calls.HANDED_BACK + 1
    cell = Cell(url)
    steps = [
        Message("shared", "normal", 0, f"s{n}", "a-run", "", b"{}", b"[]") for n in range(count)
    ]
    cell.stage("steps", steps)
    cell.open(effects.open_group("steps", "shared", "normal"))
    assert to_celery(aq, address, ["shared"], queue="celery") == Migrated(0, count)
    assert cell.redis("ZCARD", cell.keys.workers()) == 0
    assert waiting(url) == [f"normal s{n}" for n in range(count)]
