"""What is delayed, parked or put aside takes room too: its producers are told, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from celery import group

from agentq.errors import QueueFull
from agentq.ops.pausing import Kind, pause, purge, resume
from agentq.store import effects
from agentq.store.calls import Accepted, Fitting, Full
from tests.support.cell import Cell, Handed, message
from tests.support.ledger import Ledger
from tests.support.running import BOTH_POOLS, running
from tests.support.waiting import wait_until

WORKER = "w1"
HOUR = 3_600_000


@pytest.fixture
def cell(url: str) -> Iterator[Cell]:
    cell = Cell(url)
    cell.renew(WORKER)
    yield cell
    cell.store.close()


def refused(cell: Cell, *work: Any, **caps: Any) -> tuple[str, int, int]:
    answer = cell.enqueue(*work, **caps)
    assert isinstance(answer, Full), answer
    return answer.reason, answer.depth, answer.limit


def test_a_flood_of_delayed_work_is_refused_at_the_cap_and_fills_no_other_room(cell: Cell) -> None:
    for number in range(5):
        assert isinstance(cell.enqueue(message(f"d{number}", due=-HOUR), limit=5), Accepted)
    assert refused(cell, message("d5", due=-HOUR), limit=5) == ("delayed", 5, 5)
    low = message("low", lane="low", due=-HOUR)
    assert isinstance(cell.enqueue(low, lane="low", limit=5), Accepted)
    for number in range(5):
        assert isinstance(cell.enqueue(message(f"now{number}"), limit=5), Accepted)
    assert refused(cell, message("now5"), limit=5) == ("length", 5, 5)


def test_delayed_work_is_told_how_full_its_own_room_is_and_when_there_is_more(cell: Cell) -> None:
    for number in range(8):
        cell.enqueue(message(f"m{number}"), limit=10)
    first = cell.enqueue(message("d0", due=-5_000), limit=2)
    second = cell.enqueue(message("d1", due=-HOUR), limit=2)
    assert (first.load.fill, second.load.fill) == (0.0, 0.5)
    answer = cell.enqueue(message("d2", due=-HOUR), limit=2)
    assert isinstance(answer, Full)
    assert timedelta(seconds=2) < answer.retry_after <= timedelta(seconds=5)


def test_delayed_work_is_bounded_by_bytes(cell: Cell) -> None:
    def large(number: int) -> Any:
        return message(f"d{number}", due=-HOUR)._replace(body=b"x" * 1000)

    answers = [cell.enqueue(large(number), limit_bytes=3_000) for number in range(5)]
    assert [type(answer) for answer in answers] == [Accepted, Accepted, Accepted, Full, Full]
    assert answers[-1].reason == "delayed bytes"
    assert isinstance(cell.enqueue(message("now"), limit_bytes=3_000), Accepted)


def test_what_became_due_or_was_purged_leaves_its_room(cell: Cell) -> None:
    for number in range(3):
        cell.enqueue(message(f"d{number}", due=-(HOUR if number else 1)), limit=3)
    wait_until(lambda: cell.promote()[0] == 1, "the first is due")
    assert isinstance(cell.enqueue(message("d3", due=-HOUR), limit=3), Accepted)
    assert refused(cell, message("d4", due=-HOUR), limit=3) == ("delayed", 3, 3)
    assert purge(cell.store, Fitting(pool="p"), reason="purged") == 4
    assert isinstance(cell.enqueue(message("d4", due=-HOUR), limit=3), Accepted)
    load = cell.redis("HGETALL", f"{cell.prefix}load:p")
    assert (load[b"d:normal"], b"a:normal" in load) == (b"1", False)


def test_what_a_pause_put_aside_still_takes_its_place_in_the_lane(cell: Cell) -> None:
    def paused(id_: str) -> Any:
        return message(id_)._replace(headers=b'{"headers":{"task":"shop.pay"}}')

    pause(cell.store, Kind.STEP, "shop.pay")
    for number in range(4):
        cell.enqueue(paused(f"m{number}"), limit=4)
        assert cell.fetch(WORKER) == []  # puts it aside: the queue is empty
    assert refused(cell, paused("m4"), limit=4) == ("length", 4, 4)
    resume(cell.store, Kind.STEP, "shop.pay")
    assert len(cell.fetch(WORKER)) == 4
    assert isinstance(cell.enqueue(paused("m4"), limit=4), Accepted)


def test_what_is_parked_or_waits_for_its_retry_still_takes_its_place(cell: Cell) -> None:
    for number in range(2):
        cell.enqueue(message(f"m{number}"), limit=2)
    first, second = cell.fetch(WORKER)
    assert cell.park(first, after_ms=HOUR, limit_ms=2 * HOUR) == "ok"
    assert cell.fail(second, after_ms=HOUR) == "ok"
    assert refused(cell, message("m2"), limit=2) == ("length", 2, 2)
    assert isinstance(cell.enqueue(message("later", due=-HOUR), limit=2), Accepted)


def test_a_group_of_delayed_members_is_checked_as_delayed_work(cell: Cell) -> None:
    members = [message(f"g{number}", due=-HOUR) for number in range(4)]
    assert cell.open(*map(effects.put, members), limit=5, count=4) == b"ok"
    assert cell.open(*map(effects.put, members), limit=5, count=4) == b"full"
    cell.stage("g", members)
    assert cell.open(effects.open_group("g", "p", "normal"), limit=5, count=4) == b"full"
    assert isinstance(cell.enqueue(message("now"), limit=5), Accepted)


def test_a_producer_that_floods_with_countdown_gets_queue_full_and_others_go_on(
    url: str, ledger: Ledger
) -> None:
    with running("tests.support.apps.expiring", url, ledger, BROKER__MAX_LENGTH="50") as app:
        app.worker(options=(*BOTH_POOLS, "-c", "5"))
        send = partial(app.app.late.apply_async, (1,), countdown=3600)
        for _ in range(50):
            send()
        with pytest.raises(QueueFull, match="50 of at most 50 delayed messages") as full:
            send()
        assert full.value.reason == "delayed"
        assert full.value.retry_after == timedelta(seconds=60)
        with pytest.raises(QueueFull):
            group(app.app.late.s(n) for n in range(3)).apply_async(countdown=3600)
        assert [app.app.late.delay(n).get(timeout=10) for n in range(60)] == list(range(60))
        assert app.app.aq.store.command("ZCARD", app.app.aq.store.keys.delayed()) == 50


def test_a_retry_of_celerys_waits_in_the_lanes_room_and_not_in_the_producers(cell: Cell) -> None:
    cell.enqueue(message("a"))
    (handed,) = cell.fetch(WORKER)
    assert cell.complete(handed, effects.again(message("a", due=-HOUR))) == "ok"
    load = cell.redis("HGETALL", f"{cell.prefix}load:p")
    assert (load[b"a:normal"], b"d:normal" in load) == (b"1", False)
    assert refused(cell, message("b"), limit=1) == ("length", 1, 1)
    assert isinstance(cell.enqueue(message("c", due=-HOUR), limit=1), Accepted)


def started(cell: Cell, run: str, count: int, *, lane: str = "normal") -> list[Handed]:
    """Let *count* steps of a run be in a worker's hands."""
    steps = [message(f"{run}{number}", run=run, lane=lane) for number in range(count)]
    assert isinstance(cell.enqueue(*steps, run=run, lane=lane), Accepted)
    return cell.fetch(WORKER, count)


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_what_is_delayed_of_a_run_that_ended_takes_no_room(cell: Cell, how: str) -> None:
    first, second = started(cell, "r", 2)
    cell.fail(first, after_ms=HOUR)
    cell.park(second, after_ms=HOUR, limit_ms=2 * HOUR)
    [other] = started(cell, "other", 1)
    cell.fail(other, after_ms=HOUR)
    assert refused(cell, message("m"), limit=3) == ("length", 3, 3)
    if how == "expired":
        cell.pass_deadline("r")
    else:
        cell.cancel("r")
    cell.promote()
    assert cell.run_state("r") == how
    assert cell.redis("HKEYS", cell.keys.delayed_messages()) == [b"other0#1"]
    assert not cell.redis("EXISTS", f"{cell.prefix}delayed:r:r", cell.keys.parked())
    cell.promote()
    assert not cell.redis("EXISTS", f"{cell.prefix}ended")
    assert isinstance(cell.enqueue(message("m"), limit=3), Accepted)


def test_a_retry_that_a_worker_asks_for_when_its_run_has_ended_takes_no_room(cell: Cell) -> None:
    [handed] = started(cell, "r", 1)
    cell.cancel("r")
    assert cell.fail(handed, after_ms=HOUR) == "ok"
    cell.promote()
    assert not cell.redis("EXISTS", cell.keys.delayed(), cell.keys.delayed_messages())


def test_the_retries_of_an_ended_run_are_dropped_before_they_take_tokens(cell: Cell) -> None:
    cell.fill_bucket(0)
    for handed in started(cell, "r", 3):
        cell.fail(handed)
    cell.promote(retries="0 1")
    assert cell.redis("ZCARD", cell.keys.retries("p")) == 3
    cell.cancel("r")
    cell.fill_bucket(3)
    assert cell.promote(retries="0 1")[0] == 0
    assert not cell.redis("EXISTS", cell.keys.retries("p"))
    assert cell.fetch(WORKER) == []


def test_a_run_of_many_delayed_messages_ends_in_pieces(cell: Cell) -> None:
    for handed in started(cell, "r", 250):
        cell.fail(handed, after_ms=HOUR)
    cell.cancel("r")
    left = []
    while cell.promote(most=200)[0] == 200:
        left.append(cell.redis("HLEN", cell.keys.delayed_messages()))
    assert left == [150, 50]
    assert not cell.redis("EXISTS", cell.keys.delayed_messages())


def test_a_message_that_is_delayed_once_more_takes_one_place(cell: Cell) -> None:
    for due in (-HOUR, -2 * HOUR):
        cell.enqueue(message("a", due=due))
    [bytes_] = cell.redis("HVALS", cell.keys.delayed_messages())
    load = cell.redis("HGETALL", f"{cell.prefix}load:p")
    assert (load[b"d:normal"], int(load[b"db:normal"])) == (b"1", len(bytes_))
    assert float(cell.redis("ZSCORE", cell.keys.delayed(), "a#0")) > cell.now_ms() + HOUR


def test_what_is_dropped_with_its_run_leaves_nothing_of_its_fan_ins(cell: Cell) -> None:
    members = [message(f"m{n}", run="r", join=f"r:j|{n}") for n in range(4)]
    join = effects.join(
        "r:j", width=4, at_once=2, ttl_ms=60_000, run="r", body=[message("body")], members=members
    )
    cell.enqueue(join, run="r")
    for handed in cell.fetch(WORKER):
        cell.fail(handed, after_ms=HOUR)
    cell.cancel("r")
    assert cell.redis("EXISTS", cell.keys.join("r:j"), cell.keys.join_waiting("r:j")) == 2
    cell.promote()
    assert cell.redis("EXISTS", cell.keys.join("r:j"), cell.keys.join_waiting("r:j")) == 0


def test_who_is_refused_is_told_when_what_waits_beside_the_queue_comes_back(cell: Cell) -> None:
    cell.enqueue(*(message(f"m{number}") for number in range(20)))
    for place, handed in enumerate(cell.fetch(WORKER)):
        cell.fail(handed, after_ms=5_000 + place * 10_000)
    answer = cell.enqueue(message("m"), limit=20)
    assert isinstance(answer, Full)
    # A tenth of them, two: the second is due in 15 s.
    assert timedelta(seconds=12) < answer.retry_after <= timedelta(seconds=15)


def test_who_is_refused_is_told_how_long_retries_wait_for_their_budget(cell: Cell) -> None:
    cell.enqueue(*(message(f"m{number}") for number in range(100)))
    for handed in cell.fetch(WORKER):
        cell.fail(handed, after_ms=1)
    cell.fill_bucket(0)
    waiting = cell.keys.retries("p")
    wait_until(
        lambda: cell.promote(retries="0 1") and cell.redis("ZCARD", waiting) >= 99, "they are due"
    )
    answer = cell.enqueue(message("m"), limit=100)
    assert isinstance(answer, Full)
    assert answer.retry_after == timedelta(seconds=10)  # a tenth of them, one a second
