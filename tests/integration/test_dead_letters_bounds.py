"""Dead letters are bounded by number, bytes and age, and what is dropped for that is counted."""

from __future__ import annotations

import pytest

from agentq.ops.dead import Kept, Wanted, drop, letters, replay
from agentq.ops.status import read_status
from tests.support.cell import Cell


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
