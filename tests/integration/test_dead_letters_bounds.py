"""Dead letters are bounded by number, bytes and age, and what is dropped for that is counted."""

from __future__ import annotations

import pytest

from agentq.ops.dead import Kept, Wanted, drop, letters, replay
from agentq.ops.pausing import purge
from agentq.ops.status import read_status
from agentq.store import calls, effects
from agentq.store.calls import Fitting
from tests.support.cell import Cell, message
from tests.support.waiting import wait_until


@pytest.fixture
def cell(url: str) -> Cell:
    return Cell(url)


def test_the_newest_letters_are_kept_up_to_their_number(cell: Cell) -> None:
    cell.promote(max_number=30)
    cell.bury(34)
    found = [one.task_id for one in letters(cell.store, Wanted())]
    assert (len(found), found[0], found[-1]) == (30, "t4", "t33")
    assert read_status(cell.store).dead == Kept(
        number=30, bytes=90, too_old=0, too_many=4, too_large=0
    )


def test_without_a_sweep_ten_thousand_are_kept(cell: Cell) -> None:
    cell.bury(10_001)
    assert read_status(cell.store).dead == Kept(
        number=10_000, bytes=30_000, too_old=0, too_many=1, too_large=0
    )


def test_the_newest_letters_are_kept_up_to_their_bytes(cell: Cell) -> None:
    cell.promote(max_bytes=2 * 1003)
    cell.bury(5, body=b"x" * 1000)
    assert [one.task_id for one in letters(cell.store, Wanted())] == ["t3", "t4"]
    assert read_status(cell.store).dead.too_large == 3
    cell.bury(1, body=b"x" * 5000)
    assert [one.task_id for one in letters(cell.store, Wanted())] == ["t0"]  # the newest stays
    assert read_status(cell.store).dead == Kept(
        number=1, bytes=5003, too_old=0, too_many=0, too_large=5
    )


def test_lowered_limits_are_reached_a_piece_at_a_time(cell: Cell) -> None:
    cell.bury(100)
    left = []
    for _ in range(4):
        cell.promote(max_number=50)
        left.append(read_status(cell.store).dead.number)
    assert left == [80, 60, 50, 50]


def test_letters_older_than_their_time_are_dropped_and_counted(cell: Cell) -> None:
    cell.redis("XADD", cell.keys.dead(), "1000-0", "why", "old", "i", "old")
    cell.redis("XADD", cell.keys.dead(), f"{cell.now_ms() - 50_000}-0", "why", "new", "i", "new")
    cell.promote(keep_ms=60_000)
    assert [one.task_id for one in letters(cell.store, Wanted())] == ["new"]
    assert read_status(cell.store).dead.too_old == 1


def test_the_bytes_are_those_of_the_letters_there_are(cell: Cell) -> None:
    cell.bury(10, body=b"x" * 97)
    first, second, third, *_ = [one.id for one in letters(cell.store, Wanted())]
    assert replay(cell.store, [first, first]).moved == 1
    assert drop(cell.store, [second, second, first]) == 1
    assert read_status(cell.store).dead.bytes == 8 * 100
    cell.redis("XDEL", cell.keys.dead(), third)  # by an older agentq, which counts nothing
    drop(cell.store, [one.id for one in letters(cell.store, Wanted())])
    cell.promote()
    assert read_status(cell.store).dead.bytes == 0


# -- what a run waits for ----------------------------------------------------------------------------


def purged(cell: Cell, *runs: str) -> list[str]:
    """Let each run wait for a step that is purged; return the letters."""
    for run in runs:
        cell.enqueue(message(f"step of {run}", run=run), run=run, tenant="acme")
    assert purge(cell.store, Fitting(), reason="purged") == len(runs)
    return [one.id for one in letters(cell.store, Wanted())]


def fan_out(run: str) -> effects.Effect:
    members = [message(f"m{n}", run=run, join=f"{run}:1|{n}", lane="high") for n in range(2)]
    return effects.join(
        f"{run}:1", width=2, at_once=2, ttl_ms=60_000, run=run,
        body=[message("body", run=run)], members=members,
    )  # fmt: skip


def failure(cell: Cell, run: str) -> bytes:
    found: bytes = cell.redis("HGET", cell.keys.run(run), "result")
    return found


def test_a_run_fails_when_the_letter_of_its_purged_step_is_dropped(cell: Cell) -> None:
    first, second = purged(cell, "a", "b")
    assert (cell.run_state("a"), cell.run_state("b")) == ("running", "running")
    assert drop(cell.store, [first]) == 1
    assert (cell.run_state("a"), cell.run_state("b")) == ("failed", "running")
    assert failure(cell, "a") == (
        b'{"kind":"StepDropped","message":"a step of it was purged, and its dead letter is dropped '
        b'(by hand)","step":"step of a"}'
    )
    assert cell.redis("HGETALL", f"{cell.prefix}tenants") == {b"acme": b"1"}
    assert replay(cell.store, [second]).moved == 1
    cell.renew("w1")
    assert [(one.id, one.live) for one in cell.fetch("w1")] == [("step of b", True)]


def test_runs_fail_when_the_letters_of_their_purged_steps_make_room_for_others(cell: Cell) -> None:
    cell.promote(max_number=30)
    purged(cell, "a", "b")
    cell.bury(29)
    assert (cell.run_state("a"), cell.run_state("b")) == ("failed", "running")
    assert b"is dropped (dead.max_number)" in failure(cell, "a")
    keep = cell.redis("PTTL", cell.keys.run("a"))
    assert 0 < keep <= 60_000
    cell.promote(keep_ms=1)
    assert cell.run_state("b") == "failed"
    assert b"is dropped (dead.keep)" in failure(cell, "b")
    assert not cell.redis("EXISTS", f"{cell.prefix}tenants")


def test_no_run_fails_by_a_letter_that_it_does_not_wait_for(cell: Cell) -> None:
    cell.renew("w1")
    purged(cell, "a")
    assert cell.store.call(calls.cancel(cell.prefix, "a", 0)) == 1
    ended = cell.now_ms()
    wait_until(
        lambda: cell.now_ms() > ended, "a millisecond"
    )  # by which runs of a key are told apart
    cell.enqueue(message("new", run="a"), run="a")  # the same key again
    cell.enqueue(fan_out("b"), run="b")
    member, _ = cell.fetch("w1", lanes=["high"])
    counted = effects.part("b:1", 0, b"1")
    died = effects.dead("why", member.id, 0, b"", b"", pool="p", lane="high", run="b", join="b:1|0")
    assert cell.complete(member, died, counted, run="b") == "ok"
    assert drop(cell.store, [one.id for one in letters(cell.store, Wanted())]) == 2
    assert (cell.run_state("a"), cell.run_state("b")) == ("running", "running")


def test_a_run_fails_by_the_letter_of_a_member_that_its_fan_in_waits_for(cell: Cell) -> None:
    cell.enqueue(fan_out("a"), run="a")
    assert purge(cell.store, Fitting(), reason="purged") == 2
    [first, second] = letters(cell.store, Wanted())
    assert replay(cell.store, [first.id]).moved == 1
    assert cell.run_state("a") == "running"
    assert drop(cell.store, [second.id]) == 1
    assert cell.run_state("a") == "failed"
