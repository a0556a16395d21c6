"""Fan-ins on a real server, without any worker: the body once, with every outcome, at any width."""

from __future__ import annotations

import pytest

from agentq.store import calls, effects
from agentq.store.effects import Effect, Message
from tests.support.cell import Cell, message

WORKER = "w1"
WIDTHS = [0, 1, 2, 1000, 5000]


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew(WORKER)
    return cell


def opened(width: int, members: list[Message] | str, *, at_once: int = 64, run: str = "") -> Effect:
    body = [message("body", run=run, lane="high")]
    return effects.join(
        "j", width=width, at_once=at_once, ttl_ms=60_000, run=run, body=body, members=members
    )


def members_of(width: int, run: str = "") -> list[Message]:
    return [message(f"m{i}", join=f"j|{i}", run=run) for i in range(width)]


def drain(cell: Cell, at_once: int) -> tuple[list[int], int]:
    """Complete members until the body comes; return their order and the most in flight."""
    order: list[int] = []
    most = 0
    while True:
        handed = cell.fetch(WORKER, 500)
        bodies = [one for one in handed if one.id == "body"]
        if bodies:
            assert [one.id for one in handed] == ["body"]
            assert cell.fetch(WORKER) == []
            return order, most
        assert handed, "neither members nor the body are there"
        most = max(most, len(handed))
        assert most <= at_once
        for one in handed:
            index = int(one.id[1:])
            order.append(index)
            assert cell.complete(one, effects.part("j", index, b'{"value":%d}' % index)) == "ok"


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_body_comes_once_with_each_outcome_once(
    cell: Cell, width: int, *, staged: bool
) -> None:
    members = members_of(width)
    if staged:
        cell.stage("g", members)
    cell.open(opened(width, "g" if staged else members))
    order, most = drain(cell, 64)
    assert order == list(range(width))
    assert most == min(64, width)
    assert cell.outcomes("j") == {i: b'{"value":%d}' % i for i in range(width)}


def test_one_more_member_starts_for_each_that_ends(cell: Cell) -> None:
    cell.open(opened(5, members_of(5), at_once=2))
    first, second = cell.fetch(WORKER)
    assert cell.fetch(WORKER) == []
    cell.complete(first, effects.part("j", 0, b"1"))
    assert [one.id for one in cell.fetch(WORKER)] == ["m2"]
    cell.complete(second, effects.part("j", 1, b"1"))
    assert [one.id for one in cell.fetch(WORKER)] == ["m3"]


def test_an_index_counts_once(cell: Cell) -> None:
    cell.open(opened(2, members_of(2)))
    a, b = cell.fetch(WORKER)
    part = effects.part("j", 0, b'"first"')
    cell.complete(a, part, effects.part("j", 0, b'"second"'))
    assert cell.fetch(WORKER) == []
    cell.complete(b, effects.part("j", 1, b"1"))
    [body] = cell.fetch(WORKER)
    assert body.id == "body"
    assert cell.outcomes("j") == {0: b'"first"', 1: b"1"}
    cell.complete(body, effects.part("j", 1, b"2"), effects.forget("j"))
    assert cell.fetch(WORKER) == []


def test_opening_a_join_again_changes_nothing(cell: Cell) -> None:
    cell.open(opened(2, members_of(2)))
    cell.open(opened(3, members_of(3)))
    assert [one.id for one in cell.fetch(WORKER)] == ["m0", "m1"]
    assert cell.redis("HGET", cell.keys.join("j"), "width") == b"2"


def test_staging_a_chunk_again_changes_nothing(cell: Cell) -> None:
    members = members_of(1100)
    cell.stage("g", members)
    cell.stage("g", members)
    cell.open(opened(1100, "g"))
    order, _ = drain(cell, 64)
    assert order == list(range(1100))


def test_members_of_an_attempt_that_died_while_it_staged_are_not_mixed_in(cell: Cell) -> None:
    cell.stage("g@first", [message(f"wrong{i}", join=f"j|{i}") for i in range(1500)])
    cell.stage("g@second", members_of(1200))
    cell.open(opened(1200, "g@second"))
    order, _ = drain(cell, 64)
    assert order == list(range(1200))


def test_a_join_of_unknown_width_waits_until_it_is_told(cell: Cell) -> None:
    cell.open(opened(-1, members_of(2)))
    for one in cell.fetch(WORKER):
        cell.complete(one, effects.part("j", one.id[1:], b"1"))
    assert cell.fetch(WORKER) == []
    cell.open(effects.width("j", 2))
    assert [one.id for one in cell.fetch(WORKER)] == ["body"]


def test_members_of_an_opened_group_are_all_handed_out_in_order(cell: Cell) -> None:
    cell.stage("g", [message(f"m{i}") for i in range(1300)])
    assert cell.fetch(WORKER) == []
    assert cell.open(effects.open_group("g", "p", "normal"), id_="once") == b"ok"
    assert cell.open(effects.open_group("g", "p", "normal"), id_="once") == b"dup"
    seen: list[str] = []
    while handed := cell.fetch(WORKER, 300):
        seen += [one.id for one in handed]
    assert seen == [f"m{i}" for i in range(1300)]


def joins_left(cell: Cell) -> set[str]:
    return {key for key in cell.all_keys() if ":join:" in key}


def test_of_a_cancelled_run_no_fan_in_is_kept_for_those_who_will_not_come(cell: Cell) -> None:
    run, join = "r1", "r1:2"
    body = [message("body", run=run)]
    members = [message(f"m{i}", join=f"{join}|{i}", run=run) for i in range(9)]
    cell.enqueue(message("first", run=run), run=run)
    [first] = cell.fetch(WORKER)
    fan_out = effects.join(
        join, width=9, at_once=2, ttl_ms=60_000, run=run, body=body, members=members
    )
    cell.complete(first, fan_out, run=run)
    one, other = cell.fetch(WORKER)
    cell.complete(one, effects.part(join, 0, b"1"), run=run)
    cell.cancel(run)
    assert len(joins_left(cell)) == 3  # itself, an outcome, and those beyond `at_once`
    assert cell.complete(other, effects.part(join, 1, b"1"), run=run) == "ended"
    assert joins_left(cell) == set()


def test_of_a_run_that_is_over_before_its_fan_ins_body_the_outcomes_are_not_kept(
    cell: Cell,
) -> None:
    run, join = "r2", "r2:2"
    body = [message("body", run=run)._replace(headers=b'{"headers":{"aq":{"join":"r2:2"}}}')]
    cell.enqueue(message("first", run=run), run=run)
    [first] = cell.fetch(WORKER)
    member = message("m0", join=f"{join}|0", run=run)
    fan_out = effects.join(
        join, width=1, at_once=2, ttl_ms=60_000, run=run, body=body, members=[member]
    )
    cell.complete(first, fan_out, run=run)
    cell.complete(cell.fetch(WORKER)[0], effects.part(join, 0, b"1"), run=run)
    [last] = cell.fetch(WORKER)
    cell.cancel(run)
    assert cell.complete(last, run=run) == "ended"
    assert joins_left(cell) == set()


def under(run: str, join: str, width: int, *, at_once: int = 1) -> Effect:
    """A fan-in of *run* whose members are named for it."""
    members = [message(f"{join}.{i}", join=f"{join}|{i}", run=run) for i in range(width)]
    body = message(f"{join}.body", run=run)
    return effects.join(
        join, width=width, at_once=at_once, ttl_ms=60_000, run=run, body=[body], members=members
    )


def of_run(cell: Cell, run: str) -> set[str]:
    """What there is of a run beside its record and events."""
    kept = {cell.keys.run(run), cell.keys.events(run)}
    return {key for key in cell.all_keys() if run in key} - kept


def test_fan_ins_whose_members_fanned_out_themselves_end_with_their_run(cell: Cell) -> None:
    cell.enqueue(under("r3", "r3:1", 9), run="r3")
    [outer] = cell.fetch(WORKER)
    assert cell.complete(outer, under("r3", "r3:1:0", 9), run="r3") == "ok"
    [inner] = cell.fetch(WORKER)
    cell.cancel("r3")
    assert len(joins_left(cell)) == 4  # both, and their members beyond `at_once`
    cell.promote()
    assert of_run(cell, "r3") == set()
    assert cell.complete(inner, effects.part("r3:1:0", 0, b"1"), run="r3") == "ended"
    cell.promote()
    assert not cell.redis("EXISTS", f"{cell.prefix}ended")


def test_a_fan_in_whose_members_became_letters_ends_with_its_run(cell: Cell) -> None:
    cell.enqueue(under("r4", "r4:1", 9, at_once=2), run="r4")
    purge = calls.purge(
        cell.prefix, "s:p:normal", "", 100, reason="purged", fitting=calls.Fitting()
    )
    assert cell.store.call(purge)[1] == 2
    cell.pass_deadline("r4")
    cell.promote()
    assert cell.run_state("r4") == "expired"
    assert of_run(cell, "r4") == set()


def test_many_fan_ins_of_a_run_are_dropped_in_pieces(cell: Cell) -> None:
    cell.enqueue(*(under("r5", f"r5:{i}", 2) for i in range(250)), run="r5")
    cell.cancel("r5")
    left = []
    while cell.promote(most=200)[0] == 200:
        left.append(len(joins_left(cell)) // 2)
    assert left == [150, 50]
    assert of_run(cell, "r5") == set()


def test_a_run_that_forgot_its_fan_ins_leaves_nothing_to_be_dropped(cell: Cell) -> None:
    cell.enqueue(under("r6", "r6:1", 1), run="r6")
    [member] = cell.fetch(WORKER)
    joins = f"{cell.keys.run('r6')}:joins"
    assert cell.redis("SMEMBERS", joins) == {b"r6:1"}
    assert 0 < cell.redis("PTTL", joins) <= 60_000
    cell.complete(member, effects.part("r6:1", 0, b"1"), run="r6")
    [body] = cell.fetch(WORKER)
    end = effects.end("r6", "done", b"1", 60_000)
    assert cell.complete(body, effects.forget("r6:1"), end, run="r6") == "ok"
    assert of_run(cell, "r6") == set()
    assert not cell.redis("EXISTS", f"{cell.prefix}ended")
