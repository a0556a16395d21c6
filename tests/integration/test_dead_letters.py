"""Dead letters: what is kept of one, and that replay, drop and purge count exactly."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import orjson
import pytest

from agentq.broker import envelope
from agentq.errors import DeadLettersFull, LetterNotFound
from agentq.ops.dead import Wanted, drop, letter, letters, replay, with_obstacles
from agentq.ops.pausing import Kind, ago, pause, purge
from agentq.ops.status import read_status
from agentq.store import calls, effects
from agentq.store.calls import Fitting
from agentq.store.effects import Message
from tests.support.cell import KEEP_MS, LIMIT, Cell
from tests.support.command_line import Home, home
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import running
from tests.support.waiting import wait_until

WORKER = "w1"
PARK_MS = 60_000


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew(WORKER)
    return cell


def task(  # noqa: PLR0913 -- the fields of a message
    id_: str, task: str = "shop.pay", *, lane: str = "normal", run: str = "", join: str = "",
    flow: str = "", body: bytes = b"[[1],{},null]", due: int = 0,
) -> Message:  # fmt: skip
    ours = {"aq": {"v": 1, "flow": flow, "run": run, "node": 0, "path": []}} if flow else {}
    head = envelope.pack({"task": task, "id": id_, **ours}, {})
    return Message("p", lane, due, id_, run, join, head, body)


def died(cell: Cell, *messages: Message, reason: str = "why") -> list[str]:
    """Let messages die one by one; return their letters."""
    for message in messages:
        cell.enqueue(message, lane=message.lane)
        [handed] = cell.fetch(WORKER, 1, lanes=["high", "normal", "low"])
        dead = effects.dead(
            reason, message.id, 1, message.headers, message.body, retries=2, born_ms=1_700_000_000_000,
            pool="p", lane=message.lane, run=message.run, join=message.join,
        )  # fmt: skip
        assert cell.complete(handed, dead) == "ok"
    return [one.id for one in letters(cell.store, Wanted())][-len(messages) :]


def died_of_ended_run(cell: Cell) -> list[str]:
    cell.enqueue(run="over")
    letter = died(cell, task("late", run="over"))
    cell.cancel("over")
    return letter


def obstacles(cell: Cell) -> dict[str, str]:
    """Return what is said of each letter before anybody replays it."""
    found = with_obstacles(cell.store, letters(cell.store, Wanted()))
    return {one.id: why for one, why in found}


def ids(cell: Cell) -> list[str]:
    return [one.id for one in cell.fetch(WORKER)]


# -- what is kept -------------------------------------------------------------------------------------


def test_a_letter_has_reason_bytes_attempts_times_queue_and_task(cell: Cell) -> None:
    before = cell.now_ms()
    [id_] = died(cell, task("a", lane="low"), reason="no good")
    found = letter(cell.store, id_)
    assert (found.reason, found.task, found.task_id) == ("no good", "shop.pay", "a")
    assert (found.pool, found.lane, found.attempts, found.retries) == ("p", "low", 1, 2)
    assert (found.body, found.whole) == (b"[[1],{},null]", True)
    assert orjson.loads(found.headers)["headers"]["task"] == "shop.pay"
    assert found.born is not None
    assert int(found.born.timestamp()) == 1_700_000_000
    assert before <= found.died.timestamp() * 1000 <= cell.now_ms()
    assert found.size == len(found.headers) + len(found.body)


def test_a_letter_above_the_payload_limit_keeps_its_first_64_kib_and_stays(cell: Cell) -> None:
    cell.store.call(
        calls.promote(cell.prefix, 1, KEEP_MS, letters=calls.Letters(max_payload=100_000))
    )
    whole, cut = died(cell, task("a", body=b"x" * 100_000), task("b", body=b"y" * 100_001))
    assert (letter(cell.store, whole).whole, len(letter(cell.store, whole).body)) == (True, 100_000)
    found = letter(cell.store, cut)
    assert (found.whole, len(found.body)) == (False, 65_536)
    assert found.size == 100_001 + len(found.headers)
    done = replay(cell.store, [whole, cut])
    assert done.moved == 1
    assert done.refused == {
        cut: "only its beginning was kept: it was larger than broker.max_payload"
    }


def test_what_died_too_often_is_a_letter_with_its_queue(cell: Cell) -> None:
    cell.enqueue(task("a", run="r"), run="r")
    for _ in range(LIMIT):
        assert ids(cell) == ["a"]
        cell.release(WORKER, died=True)
        cell.renew(WORKER)
    [found] = letters(cell.store, Wanted())
    assert (found.pool, found.lane, found.run, found.attempts) == ("p", "normal", "r", LIMIT)
    assert found.reason == f"its worker died {LIMIT} times while it ran"


def test_a_replay_drops_the_expiry_and_nothing_else_of_the_head(cell: Cell) -> None:
    nested = {"argsrepr": '{"expires":"never"}', "mine": {"expires": "tomorrow"}, "list": []}
    headers = {"task": "t", "id": "a", "expires": "2020-01-01T00:00:00+00:00", **nested}
    head = envelope.pack(headers, {"expiration": None})
    [id_] = died(cell, Message("p", "normal", 0, "a", "", "", head, b"[[],{},null]"))
    assert replay(cell.store, [id_]).moved == 1
    [[_, entry]] = cell.redis("XRANGE", cell.keys.stream("p", "normal"), "-", "+")
    assert orjson.loads(entry[b"h"]) == orjson.loads(head) | {
        "headers": headers | {"expires": None}
    }


# -- list, replay, drop -------------------------------------------------------------------------------


def test_letters_are_filtered_by_reason_task_pool_and_time(cell: Cell) -> None:
    cell.redis("XADD", cell.keys.dead(), f"{cell.now_ms() - 90_000}-0", "why", "?", "i", "old")
    died(cell, task("a", "x.one"), reason="Too deep")
    died(cell, task("b", "x.two"), reason="no message")
    cell.redis("XADD", cell.keys.dead(), "*", "why", "?", "i", "c", "p", "other")

    def found(**wanted: object) -> list[str]:
        return [one.task_id for one in letters(cell.store, Wanted(**wanted))]  # type: ignore[arg-type]

    assert found(reason="too") == ["a"]
    assert found(task="x.two") == ["b"]
    assert found(pool="p", reason="o") == ["a", "b"]
    assert found(pool="other") == ["c"]
    assert found(since=timedelta(minutes=1)) == ["a", "b", "c"]


def test_a_replayed_letter_is_as_new_and_is_replayed_once(cell: Cell) -> None:
    [id_] = died(cell, task("a"))
    assert replay(cell.store, [id_, id_]).moved == 1
    assert replay(cell.store, [id_]).refused == {id_: "it was replayed or dropped before"}
    [handed] = cell.fetch(WORKER)
    assert (handed.id, handed.attempts, handed.retries, handed.live) == ("a", 0, 0, True)
    assert list(letters(cell.store, Wanted())) == []


def test_a_letter_of_an_ended_run_stays_and_says_so(cell: Cell) -> None:
    cell.enqueue(run="over")
    cell.enqueue(run="goes on")
    first, second = died(cell, task("a", run="over"), task("b", run="goes on"))
    cell.cancel("over")
    assert obstacles(cell) == {first: "its run has ended: submit it again", second: ""}
    done = replay(cell.store, [first, second])
    assert (done.moved, done.refused) == (1, {first: "its run has ended: submit it again"})
    assert ids(cell) == ["b"]
    assert letter(cell.store, first).run == "over"


def test_a_member_that_its_fan_in_has_counted_stays(cell: Cell) -> None:
    members = [task(f"m{i}", run="r", join=f"j|{i}") for i in range(2)]
    join = effects.join(
        "j", width=2, at_once=2, ttl_ms=KEEP_MS, run="r", body=[task("body")], members=members
    )
    cell.enqueue(join, run="r")
    counted, open_ = cell.fetch(WORKER)
    for handed, index in ((counted, 0), (open_, 1)):
        dead = effects.dead(
            "w", handed.id, 0, b"", b"", pool="p", lane="normal", run="r", join=f"j|{index}"
        )
        more = [effects.part("j", 0, b"null")] if index == 0 else []
        cell.complete(handed, dead, *more)
    first, second = [one.id for one in letters(cell.store, Wanted())]
    fan_in = "its fan-in has counted it as failed, or has ended"
    assert obstacles(cell) == {first: fan_in, second: ""}
    done = replay(cell.store, [first, second])
    assert done.refused == {first: fan_in}
    assert ids(cell) == ["m1"]


def test_many_letters_are_replayed_and_dropped_exactly(cell: Cell) -> None:
    cell.bury(1050)
    found = [one.id for one in letters(cell.store, Wanted())]
    assert replay(cell.store, found[:350]).moved == 350
    assert replay(cell.store, found[:700]).moved == 350  # interrupted and asked again
    assert drop(cell.store, found[:900]) == 200
    assert drop(cell.store, found) == 150
    assert cell.redis("XLEN", cell.keys.stream("p", "normal")) == 700


def test_a_letter_that_is_not_there_is_named(cell: Cell) -> None:
    for id_ in (
        "5-5",
        "nonsense",
        f"{1 << 64}-1",
        "9" * 5000 + "-1",
        "\N{SUPERSCRIPT TWO}-1",
        "٣-1",
    ):
        with pytest.raises(LetterNotFound, match=id_):
            letter(cell.store, id_)
        assert replay(cell.store, [id_]).refused == {id_: "it was replayed or dropped before"}
        assert drop(cell.store, [id_]) == 0


# -- purge --------------------------------------------------------------------------------------------


def purged(cell: Cell, **fitting: object) -> int:
    return purge(cell.store, Fitting(**fitting), reason="purged")  # type: ignore[arg-type]


def test_purge_moves_what_waits_and_leaves_what_workers_hold(cell: Cell) -> None:
    cell.enqueue(task("held"))
    assert ids(cell) == ["held"]
    cell.enqueue(*(task(f"a{n}") for n in range(450)))
    cell.enqueue(task("other", "shop.ship"), task("later", due=-60_000))
    assert purged(cell, step="shop.pay") == 451
    assert purged(cell, step="shop.pay") == 0
    assert ids(cell) == ["other"]
    assert sum(one.reason == "purged" for one in letters(cell.store, Wanted())) == 451
    assert cell.redis("HLEN", f"{cell.keys.delayed()}:m") == 0


def test_purge_fits_pool_lane_flow_tenant_and_age(cell: Cell) -> None:
    for run, tenant in (("r1", "acme"), ("r2", "other")):
        cell.enqueue(task(f"of {tenant}", run=run, flow="f"), run=run)
        cell.redis("HSET", cell.keys.run(run), "tenant", tenant)
    cell.enqueue(task("low", lane="low"), task("g", flow="g", run=""))
    assert purged(cell, pool="none") == 0
    assert purged(cell, lane="low", pool="p") == 1
    assert purged(cell, tenant="acme") == 1
    assert purged(cell, flow="g") == 1
    assert purged(cell, pool="p", before_ms=ago(timedelta(hours=1))) == 0
    then = cell.now_ms()
    wait_until(lambda: cell.now_ms() > then, "a millisecond")
    assert purged(cell, pool="p", before_ms=ago(timedelta(milliseconds=0))) == 1
    assert [one.task_id for one in letters(cell.store, Wanted())] == [
        "low",
        "of acme",
        "g",
        "of other",
    ]
    assert cell.run_state("r1") == "running"


def test_purge_takes_what_a_pause_put_aside(cell: Cell) -> None:
    pause(cell.store, Kind.STEP, "shop.pay")
    cell.enqueue(*(task(f"a{n}") for n in range(5)), task("b", "shop.ship"))
    assert ids(cell) == ["b"]
    assert purged(cell, step="shop.pay") == 5
    assert read_status(cell.store).pauses[0].aside == 0


def test_purge_takes_an_opened_group(cell: Cell) -> None:
    cell.stage("g", [task(f"g{n}") for n in range(700)])
    cell.open(effects.open_group("g", "p", "normal"))
    assert purged(cell, pool="p") == 700
    assert ids(cell) == []


def test_purge_stops_where_it_would_push_out_letters(cell: Cell) -> None:
    cell.bury(3)
    cell.promote(max_number=5)
    cell.enqueue(*(task(f"a{n}") for n in range(5)))
    with pytest.raises(DeadLettersFull) as full:
        purged(cell, pool="p")
    assert full.value.moved == 2
    assert ids(cell) == ["a2", "a3", "a4"]


def test_purge_stops_where_it_would_push_out_bytes(cell: Cell) -> None:
    cell.promote(max_bytes=2100)
    cell.enqueue(*(task(f"a{n}", body=b"x" * 900) for n in range(3)))
    with pytest.raises(DeadLettersFull) as full:
        purged(cell, pool="p")
    assert full.value.moved == 2
    assert ids(cell) == ["a2"]


# -- parked -------------------------------------------------------------------------------------------


def park(cell: Cell, lacking: str, *, limit_ms: int = PARK_MS) -> bytes:
    [handed] = cell.fetch(WORKER, 1)
    call = calls.park(
        cell.prefix, "p:normal", handed.stream, handed.entry, after_ms=1, name=lacking,
        limit_ms=limit_ms, keep_ms=KEEP_MS,
    )  # fmt: skip
    answer: bytes = cell.store.call(call)
    return answer


def test_what_nobody_knows_is_counted_and_offered_again_uncharged(cell: Cell) -> None:
    cell.enqueue(task("a"), task("b"))
    assert [park(cell, "task shop.pay"), park(cell, "task shop.pay")] == [b"ok", b"ok"]
    [parked] = read_status(cell.store).parked
    assert (parked.lacking, parked.count) == ("task shop.pay", 2)
    assert 0 <= parked.for_ms < 30_000
    wait_until(lambda: cell.promote() and not read_status(cell.store).parked, "both are offered")
    handed = cell.fetch(WORKER)
    assert [(one.id, one.attempts, one.retries) for one in handed] == [("a", 0, 0), ("b", 0, 0)]
    assert cell.redis("EXISTS", cell.keys.parked(), cell.keys.parked_since()) == 0


def test_what_is_parked_too_long_is_dead_and_ends_its_run(cell: Cell) -> None:
    cell.enqueue(task("a", run="r"), run="r")
    assert park(cell, "task shop.pay", limit_ms=40) == b"ok"
    since = cell.now_ms()
    wait_until(lambda: cell.now_ms() > since + 60, "the limit")
    wait_until(
        lambda: cell.promote() and cell.redis("XLEN", cell.keys.stream("p", "normal")), "due"
    )
    assert park(cell, "task shop.pay", limit_ms=40) == b"dead"
    [found] = letters(cell.store, Wanted(reason="unknown"))
    assert found.reason == "unknown: no worker that saw it has task shop.pay"
    assert cell.run_state("r") == "failed"


@pytest.mark.parametrize("options", [(), ("-P", "prefork", "-c", "1")], ids=["ours", "prefork"])
def test_a_task_that_no_worker_has_is_shown_and_dies_in_time(
    session_server: Server, ledger: Ledger, options: tuple[str, ...]
) -> None:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    with running("tests.support.apps.faults", url, ledger, BROKER__PARK_LIMIT="3s") as app:
        worker = app.worker(options=("-Q", "critical,shared", *options))
        app.app.app.send_task("shop.gone", queue="shared")
        store = app.app.aq.store
        shown = wait_until(lambda: read_status(store).parked, "it is parked", timeout=5)
        assert [(one.lacking, one.count) for one in shown] == [("task shop.gone", 1)]
        [found] = wait_until(lambda: list(letters(store, Wanted())), "it is dead", timeout=15)
        assert (found.reason, found.task) == (
            "unknown: no worker that saw it has task shop.gone", "shop.gone",
        )  # fmt: skip
        assert read_status(store).parked == ()
        assert worker.log().count("no task shop.gone here") == 1, "it was looked at four times"


# -- the commands -------------------------------------------------------------------------------------


@pytest.fixture
def user() -> Iterator[Home]:
    with home() as found:
        yield found


def test_the_commands_list_show_replay_drop_and_purge(user: Home, cell: Cell, url: str) -> None:
    env = {"AGENTQ_BROKER__URL": url}
    first, second, third = died(cell, task("a"), task("b"), task("c", "shop.ship"))
    listed = user.json("dead", "list", "--task", "shop.pay", env=env)["letters"]
    assert [one["id"] for one in listed] == [first, second]
    shown = user.json("dead", "show", first, env=env)
    assert (shown["body"], shown["replayable"]) == ("[[1],{},null]", True)
    assert "shop.ship" in user.run("dead", "show", third, env=env).stdout
    [ended] = died_of_ended_run(cell)
    said = user.run("dead", "show", ended, env=env).stdout
    assert "replayable: False\nobstacle:  its run has ended: submit it again\n" in said
    assert user.json("dead", "drop", ended, env=env) == {"dropped": 1}
    assert user.json("dead", "replay", first, env=env) == {"replayed": 1, "refused": {}}
    assert user.run("dead", "replay", first, env=env).returncode == 1
    for all_of_them in (("--task", "shop.ship"), ("--all",)):
        refused = user.run("dead", "drop", *all_of_them, env=env)
        assert (refused.returncode, "deletes for good" in refused.stderr) == (2, True)
    dropped = user.json("dead", "drop", "--task", "shop.ship", "--yes", env=env)
    assert dropped == {"dropped": 1}
    assert user.run("dead", "drop", env=env).returncode == 2
    assert user.run("purge", "--pool", "p", env=env).returncode == 2
    unsaid = user.run("purge", "--yes", env=env).stderr
    assert "at least one of --pool, --lane" in unsaid
    assert "for --pool" not in unsaid
    assert user.json("purge", "--pool", "p", "--yes", env=env) == {"purged": 1}
    assert user.run("dead", "replay", "--all", env=env).stdout == "2 dead letters replayed\n"
