"""The functions on a real server, without any worker: each guarantee at the place that gives it."""

from __future__ import annotations

from datetime import timedelta

import orjson
import pytest

from agentq.outcome import Err, outcome_of
from agentq.store import calls, effects
from agentq.store.calls import Accepted, Duplicate, Full
from tests.support.cell import LIMIT, Cell, Handed, message
from tests.support.waiting import wait_until

WORKER = "w1"
SECOND = timedelta(seconds=1)


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew(WORKER)
    return cell


def ids(handed: list[Handed]) -> list[str]:
    return [one.id for one in handed]


# -- enqueue ----------------------------------------------------------------------------------


def test_the_same_id_is_accepted_once(cell: Cell) -> None:
    assert cell.enqueue(message("a"), id_="a") == Accepted(0, 0)
    assert cell.enqueue(message("a"), id_="a") == Duplicate()
    assert ids(cell.fetch(WORKER)) == ["a"]


def test_the_same_run_is_accepted_once_even_after_it_ended(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), run="r")
    assert cell.enqueue(message("a", run="r"), run="r") == Duplicate()
    [handed] = cell.fetch(WORKER)
    cell.complete(handed, effects.end("r", "done", b"1", 60_000), run="r")
    assert cell.enqueue(message("a", run="r"), run="r") == Duplicate()
    assert cell.fetch(WORKER) == []


def test_a_lane_at_its_limit_refuses_and_accepts_again_when_there_is_room(cell: Cell) -> None:
    for name in "abc":
        assert isinstance(cell.enqueue(message(name), limit=3), Accepted)
    assert cell.enqueue(message("d"), limit=3, id_="d", run="") == Full("length", 3, 3, SECOND)
    assert isinstance(cell.enqueue(message("e", lane="high"), limit=3, lane="high"), Accepted)
    handed = cell.fetch(WORKER)
    assert ids(handed) == ["e", "a", "b", "c"]
    cell.complete(handed[1])
    assert cell.enqueue(message("d"), limit=3, id_="d") == Accepted(2, 0)  # the id was not used up


def test_a_refused_run_leaves_nothing_behind(cell: Cell) -> None:
    cell.enqueue(message("a"), limit=1)
    before = cell.all_keys()
    assert cell.enqueue(message("b", run="r"), run="r", limit=1, deadline_ms=-1000) == Full(
        "length", 1, 1, SECOND
    )
    assert cell.all_keys() == before


# -- what a worker holds ------------------------------------------------------------------------


def test_everything_that_a_worker_holds_is_listed_however_much_it_is(cell: Cell) -> None:
    """What is left out would stay with a worker that never got it, as long as that lives."""
    for number in range(2100):
        cell.enqueue(message(str(number)), limit=3000)
    handed: list[Handed] = []
    while got := cell.fetch(WORKER, 256):
        handed += got
    held = cell.store.call(calls.held(cell.prefix, WORKER))
    assert {(stream, entry) for _, stream, entry in held} == {
        (one.stream.encode(), one.entry.encode()) for one in handed
    }
    assert len(held) == 2100


def test_a_worker_that_is_gone_has_no_room(cell: Cell) -> None:
    idle = f"{cell.prefix}idle:p"
    cell.enqueue(message("a"))
    [handed] = cell.fetch(WORKER, 5)
    cell.complete(handed)
    assert cell.redis("ZRANGE", idle, 0, -1) == [WORKER.encode()]
    cell.release(WORKER)
    assert cell.redis("ZRANGE", idle, 0, -1) == []


# -- fetch --------------------------------------------------------------------------------------


def test_lanes_are_read_in_order_and_returned_work_before_new(cell: Cell) -> None:
    for name, lane in (("low", "low"), ("n1", "normal"), ("n2", "normal"), ("high", "high")):
        cell.enqueue(message(name, lane=lane), lane=lane)
    [first] = cell.fetch(WORKER, 1, lanes=["normal"])
    assert cell.fail(first) == "ok"
    assert ids(cell.fetch(WORKER)) == ["high", "n1", "n2", "low"]


def test_fetch_never_hands_out_more_than_there_is_room_for(cell: Cell) -> None:
    for number in range(10):
        cell.enqueue(message(f"n{number}"))
        cell.enqueue(message(f"h{number}", lane="high"), lane="high")
    assert ids(cell.fetch(WORKER, 12)) == [*(f"h{n}" for n in range(10)), "n0", "n1"]


def test_fetch_without_a_lease_hands_out_nothing(cell: Cell) -> None:
    cell.enqueue(message("a"))
    with pytest.raises(AssertionError, match="holds no lease"):
        cell.fetch("stranger")
    assert ids(cell.fetch(WORKER)) == ["a"]


def test_a_step_of_an_ended_run_is_handed_out_as_not_live(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), run="r", deadline_ms=-60_000)
    cell.enqueue(message("b", run="q"), run="q")
    cell.enqueue(message("c", run="unknown"))
    assert cell.cancel("q") == 1
    a, b, c = cell.fetch(WORKER)
    assert (a.live, b.live, c.live) == (True, False, False)
    assert 0 < a.deadline_ms - cell.now_ms() <= 60_000
    assert b.deadline_ms == 0


# -- complete: the fence --------------------------------------------------------------------------


def test_a_delivery_is_completed_once(cell: Cell) -> None:
    cell.enqueue(message("a"))
    [handed] = cell.fetch(WORKER)
    assert cell.complete(handed, effects.put(message("next"))) == "ok"
    assert cell.complete(handed, effects.put(message("again"))) == "stale"
    assert cell.fail(handed) == "stale"
    assert ids(cell.fetch(WORKER)) == ["next"]


def test_a_reaped_worker_is_refused_and_its_successor_is_not(cell: Cell) -> None:
    cell.renew("w2")
    cell.enqueue(message("a"))
    [late] = cell.fetch(WORKER)
    cell.expire_lease(WORKER)
    assert cell.reap() == (1, WORKER)
    [again] = cell.fetch("w2")
    assert (again.id, again.attempts, again.retries) == ("a", 1, 0)
    assert cell.complete(late, effects.put(message("wrong"))) == "stale"
    assert cell.complete(again, effects.put(message("right"))) == "ok"
    assert ids(cell.fetch("w2")) == ["right"]


def test_a_worker_that_asks_under_a_lease_that_has_run_out_keeps_it_and_what_it_is_given(
    cell: Cell,
) -> None:
    cell.renew(WORKER)
    cell.reap()
    cell.expire_lease(WORKER)
    cell.enqueue(message("1"))
    assert ids(cell.fetch(WORKER)) == ["1"]
    assert cell.reap() == (0, "")


def test_a_reaped_lease_can_not_be_renewed(cell: Cell) -> None:
    assert cell.renew(WORKER, first=False)
    cell.expire_lease(WORKER)
    cell.reap()
    assert not cell.renew(WORKER, first=False)


def test_a_result_behind_the_deadline_is_refused_and_ends_the_run(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), run="r", deadline_ms=-20)
    [handed] = cell.fetch(WORKER)
    wait_until(lambda: cell.now_ms() > handed.deadline_ms, "the deadline")
    end = effects.end("r", "done", b"1", 60_000)
    assert cell.complete(handed, end, effects.put(message("next", run="r")), run="r") == "late"
    assert cell.run_state("r") == "expired"
    assert cell.fetch(WORKER) == []


def test_a_result_of_a_cancelled_run_is_dropped(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), run="r")
    [handed] = cell.fetch(WORKER)
    assert cell.cancel("r") == 1
    assert cell.complete(handed, effects.put(message("next", run="r")), run="r") == "ended"
    assert cell.complete(handed, run="r") == "stale"
    assert cell.fetch(WORKER) == []


def test_a_run_ends_once(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), message("b", run="r"), run="r")
    a, b = cell.fetch(WORKER)
    assert cell.complete(a, effects.end("r", "done", b'"a"', 60_000), run="r") == "ok"
    assert cell.complete(b, effects.end("r", "failed", b'"b"', 60_000), run="r") == "ended"
    assert cell.cancel("r") == 0
    assert cell.cancel("unknown") == -1
    assert cell.run_state("r") == "done"
    assert cell.redis("HGET", cell.keys.run("r"), "result") == b'"a"'
    events = cell.redis("XRANGE", cell.keys.events("r"), "-", "+")
    assert [fields[b"e"] for _, fields in events] == [b"end"]


# -- leases ---------------------------------------------------------------------------------------


def test_reap_leaves_live_workers_alone(cell: Cell) -> None:
    cell.enqueue(message("a"))
    cell.fetch(WORKER)
    assert cell.reap() == (0, "")


def test_after_a_gap_in_which_nobody_reaped_every_lease_gets_a_new_term(cell: Cell) -> None:
    cell.enqueue(message("a"))
    [handed] = cell.fetch(WORKER)
    cell.reap()
    cell.expire_lease(WORKER)
    cell.redis("SET", f"{cell.prefix}reap:last", cell.now_ms() - 5000)
    assert cell.reap(gap_ms=3000) == (0, "")
    assert cell.redis("ZSCORE", cell.keys.workers(), WORKER) > cell.now_ms()
    assert cell.complete(handed) == "ok"


ANOTHER_SERVER = "0" * 40


@pytest.mark.parametrize("first", ["reap", "a new worker's lease"])
def test_on_a_new_server_every_lease_gets_one_new_term(cell: Cell, first: str) -> None:
    """After a failover, or a restart: nobody could renew, and no gap need show it."""
    cell.enqueue(message("a"))
    [handed] = cell.fetch(WORKER)
    cell.reap()
    cell.redis("SET", f"{cell.prefix}reap:server", ANOTHER_SERVER)
    cell.expire_lease(WORKER)
    if first != "reap":
        cell.renew("another")
    assert cell.reap() == (0, "")
    assert cell.redis("ZSCORE", cell.keys.workers(), WORKER) > cell.now_ms()
    cell.expire_lease(WORKER)
    assert cell.reap() == (1, WORKER)
    assert cell.complete(handed) == "stale"


def test_a_gap_and_a_new_server_are_one_new_term(cell: Cell) -> None:
    cell.renew(WORKER)
    cell.redis("SET", f"{cell.prefix}reap:server", ANOTHER_SERVER)
    cell.redis("SET", f"{cell.prefix}reap:last", cell.now_ms() - 5000)
    assert cell.reap(gap_ms=3000) == (0, "")
    cell.expire_lease(WORKER)
    assert cell.reap() == (0, WORKER)


def die_with_what_it_holds(cell: Cell, *, limit: int = LIMIT) -> None:
    cell.expire_lease(WORKER)
    assert cell.reap(limit=limit)[1] == WORKER
    cell.renew(WORKER)


def test_work_that_killed_its_worker_to_the_limit_is_handed_out_once_to_be_failed(
    cell: Cell,
) -> None:
    cell.enqueue(message("poison"))
    for attempt in range(LIMIT + 1):
        [handed] = cell.fetch(WORKER)
        assert handed.attempts == attempt
        die_with_what_it_holds(cell)
    assert cell.fetch(WORKER) == []
    [letter] = cell.dead_letters()
    assert (letter[b"i"], letter[b"a"], letter[b"h"], letter[b"b"]) == (
        b"poison", b"4", b'{"h":1}', b'["b"]',
    )  # fmt: skip
    assert b'"status":"FAILURE"' in cell.redis("GET", cell.keys.result("poison"))


def test_a_run_whose_step_is_dead_fails(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), run="r")
    cell.fetch(WORKER)
    die_with_what_it_holds(cell, limit=2)
    assert cell.run_state("r") == "running"
    cell.fetch(WORKER)
    die_with_what_it_holds(cell, limit=2)
    assert cell.run_state("r") == "failed"
    assert cell.fetch(WORKER) == []
    assert [letter[b"i"] for letter in cell.dead_letters()] == [b"a"]


def test_a_join_whose_member_is_dead_gets_its_error_in_the_form_members_send(cell: Cell) -> None:
    body = message("body", run="r")
    members = [message(f"m{i}", run="r", join=f"j|{i}") for i in range(2)]
    join = effects.join(
        "j", width=2, at_once=2, ttl_ms=60_000, run="r", body=[body], members=members
    )
    cell.enqueue(join, run="r")
    good, _ = cell.fetch(WORKER)
    cell.complete(good, effects.part("j", 0, b'{"value":1}'), run="r")
    die_with_what_it_holds(cell, limit=1)
    assert ids(cell.fetch(WORKER)) == ["body"]
    assert cell.outcomes("j")[0] == b'{"value":1}'
    error = outcome_of(orjson.loads(cell.outcomes("j")[1]))
    assert isinstance(error, Err)
    assert (error.kind, error.attempts) == ("WorkerLost", 1)


def test_a_run_is_told_of_each_death_and_its_error_names_the_step(cell: Cell) -> None:
    poison = message("a", run="r")._replace(headers=b'{"headers":{"task":"shop.pay"}}')
    cell.enqueue(poison, run="r")
    cell.renew("w2@vm#7", suspects=16)
    assert len(cell.fetch("w2@vm#7")) == 1
    cell.expire_lease("w2@vm#7")
    cell.reap()
    for _ in range(LIMIT):
        cell.renew(WORKER, suspects=16)
        [held] = cell.fetch(WORKER)
        assert cell.died_alone(held) == "ok"
    *lost, (_, end) = cell.redis("XRANGE", cell.keys.events("r"), "-", "+")
    told = [orjson.loads(fields[b"d"]) for _, fields in lost]
    assert {fields[b"e"] for _, fields in lost} == {b"lost"}
    assert [(one["step"], one["task"], one["limit"]) for one in told] == [
        ("shop.pay", "a", LIMIT)
    ] * (LIMIT + 1)
    assert [(one["worker"], one["charged"], one["deaths"], one["attempt"]) for one in told] == [
        ("w2@vm", 0, 0, 1),
        *((WORKER, 1, death, death + 1) for death in range(1, LIMIT + 1)),
    ]
    assert all(one["start"] > 0 <= one["waited"] and one["ran"] >= 0 for one in told)
    assert end == {b"e": b"end", b"d": b'"failed"'}
    error = orjson.loads(cell.redis("HGET", cell.keys.run("r"), "result"))
    assert (error["step"], error["kind"]) == ("shop.pay", "WorkerLost")


def test_a_run_that_has_ended_is_told_of_no_death(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), run="r")
    cell.fetch(WORKER)
    cell.redis("DEL", cell.keys.run("r"), cell.keys.events("r"))  # as if it had been kept its time
    cell.expire_lease(WORKER)
    cell.reap()
    assert not cell.redis("EXISTS", cell.keys.events("r"))


def test_a_worker_that_stops_in_order_is_no_loss(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), run="r")
    cell.fetch(WORKER)
    cell.release(WORKER)
    assert not cell.redis("EXISTS", cell.keys.events("r"))


def test_what_dies_with_a_worker_that_isolates_is_suspect_and_charged_only_when_it_dies_alone(
    cell: Cell,
) -> None:
    cell.enqueue(message("poison"), message("other"))
    for deaths in range(1, 6):  # more than the limit: as neighbours, both of them
        cell.renew("w2", suspects=16)
        cell.fetch("w2")
        cell.expire_lease("w2")
        assert cell.reap() == (2, "w2")
        cell.renew(WORKER, suspects=16)
        held = cell.fetch(WORKER)
        assert [(one.id, one.attempts, one.suspected) for one in held] == [
            ("poison", 0, deaths), ("other", 0, deaths),
        ]  # fmt: skip
        assert cell.release(WORKER) == 2  # in order: not charged, no more suspect than before
    cell.renew(WORKER, suspects=16)
    for attempt in range(1, LIMIT + 2):
        poison = next(one for one in cell.fetch(WORKER) if one.id == "poison")
        assert (poison.attempts, poison.suspected) == (attempt - 1, 5)
        assert cell.died_alone(poison) == "ok"
        assert cell.died_alone(poison) == "stale"
    assert cell.fetch(WORKER) == []
    [letter] = cell.dead_letters()
    assert (letter[b"i"], letter[b"a"]) == (b"poison", b"4")


def test_a_suspect_stays_one_whatever_else_happens_to_it(cell: Cell) -> None:
    cell.renew("w2", suspects=1)
    cell.enqueue(message("a"), message("new"))
    cell.fetch("w2", 1)
    cell.expire_lease("w2")
    cell.reap()
    for retry in (False, True):
        [handed] = cell.fetch(WORKER, 1)
        assert (handed.id, handed.suspected) == ("a", 1)
        cell.fail(handed, after_ms=20, retry=retry)
        wait_until(lambda: cell.promote()[0] == 1, "it is due")
    found = [(one.id, one.retries, one.suspected) for one in cell.fetch(WORKER)]
    assert found == [("a", 1, 1), ("new", 0, 0)]  # still before newer work


def test_what_dies_with_a_worker_that_isolates_nothing_is_charged_only_where_it_was_alone(
    cell: Cell,
) -> None:
    cell.enqueue(message("a"), message("b"))
    assert len(cell.fetch(WORKER)) == 2
    cell.expire_lease(WORKER)
    cell.reap()
    cell.renew(WORKER)
    [first] = cell.fetch(WORKER, 1)
    assert (first.id, first.attempts, first.suspected) == ("a", 0, 1)
    cell.expire_lease(WORKER)
    cell.reap()
    cell.renew(WORKER)
    assert [(one.id, one.attempts, one.suspected) for one in cell.fetch(WORKER)] == [
        ("b", 0, 1), ("a", 1, 1),
    ]  # fmt: skip


def test_a_worker_that_stops_in_order_hands_back_uncharged(cell: Cell) -> None:
    cell.renew("w2")
    cell.enqueue(message("a"))
    cell.enqueue(message("b"))
    assert len(cell.fetch(WORKER)) == 2
    assert cell.release(WORKER) == 2
    assert [(one.id, one.attempts) for one in cell.fetch("w2")] == [("a", 0), ("b", 0)]
    assert not cell.renew(WORKER, first=False)


def test_more_than_one_call_can_carry_is_handed_back_by_several(cell: Cell) -> None:
    members = [message(f"m{i}") for i in range(1200)]
    cell.stage("g", members)
    cell.open(effects.open_group("g", "p", "normal"))
    taken = 0
    while handed := cell.fetch(WORKER, 500):
        taken += len(handed)
    assert taken == 1200
    cell.expire_lease(WORKER)
    assert [cell.reap()[0] for _ in range(5)] == [250, 250, 250, 250, 200]
    cell.renew("w2")
    assert len(cell.fetch("w2", 2000)) == 1200


def test_a_message_with_missing_fields_does_not_stop_the_reaper(cell: Cell) -> None:
    cell.enqueue(message("good"))
    stream = cell.keys.stream("p", "normal")
    cell.redis("XADD", stream, "*", "x", "y")
    cell.redis("XADD", stream, "*", "i", "odd", "r", "", "j", "no bar", "a", "many", "n", "x")
    call = ("FCALL", "aq1_fetch", 1, cell.prefix, WORKER, "p", 9, 0, "normal", 9)
    assert len(cell.store.call(call)[1]) == 3
    cell.expire_lease(WORKER)
    assert cell.reap() == (3, WORKER)
    cell.renew(WORKER)
    assert len(cell.store.call(call)[1]) == 3
    assert cell.release(WORKER, died=True) == 3


def test_a_stream_that_a_stranger_made_is_read_and_reaped(cell: Cell) -> None:
    cell.redis(
        "XADD", cell.keys.stream("p", "normal"), "*", "i", "a", "r", "", "j", "", "h", "", "b", ""
    )
    assert ids(cell.fetch(WORKER)) == ["a"]
    cell.enqueue(message("b"))
    assert ids(cell.fetch(WORKER)) == ["b"]
    assert cell.release(WORKER) == 2


# -- delayed --------------------------------------------------------------------------------------


def test_delayed_work_is_moved_when_due_and_not_before(cell: Cell) -> None:
    cell.enqueue(message("soon", due=-150))
    cell.enqueue(message("later", due=-60_000))
    moved, _, next_due = cell.promote()
    assert (moved, cell.fetch(WORKER)) == (0, [])
    assert 0 < next_due - cell.now_ms() <= 150
    wait_until(lambda: cell.now_ms() >= next_due, "the due time")
    assert cell.promote()[0] == 1
    assert ids(cell.fetch(WORKER)) == ["soon"]
    assert cell.promote()[0] == 0


def test_a_failed_delivery_comes_back_after_its_delay_with_its_retry_counted(cell: Cell) -> None:
    cell.enqueue(message("a"))
    [handed] = cell.fetch(WORKER)
    assert cell.fail(handed, after_ms=50) == "ok"
    due = cell.promote()[2]
    wait_until(lambda: cell.now_ms() >= due, "the due time")
    cell.promote()
    [again] = cell.fetch(WORKER)
    assert (again.id, again.retries, again.attempts) == ("a", 1, 0)
    assert again.entry != handed.entry
    assert cell.fail(again, retry=False) == "ok"
    [third] = cell.fetch(WORKER)
    assert third.retries == 1


def test_promote_ends_runs_behind_their_deadline(cell: Cell) -> None:
    cell.enqueue(message("a", run="r"), run="r", deadline_ms=-1)
    cell.enqueue(message("b", run="q"), run="q", deadline_ms=-60_000)
    wait_until(lambda: cell.promote()[1] == 1, "one run expires")
    assert (cell.run_state("r"), cell.run_state("q")) == ("expired", "running")
