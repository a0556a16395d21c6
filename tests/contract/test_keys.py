"""Every key is in the table of `store/keys.py`, and every one that may stand for ever is on its list."""

from __future__ import annotations

import re

import pytest

from agentq.store import effects, keys
from tests.support.cell import Cell, message
from tests.support.waiting import wait_until

WORKER = "w1"


@pytest.fixture
def used(url: str) -> Cell:
    """A cell in which every kind of thing happened and nothing is under way any more."""
    cell = Cell(url)
    cell.renew(WORKER)
    cell.enqueue(message("plain"), id_="plain")
    cell.enqueue(message("delayed", due=-1))
    cell.enqueue(message("poison"))
    fan_out(cell)
    cell.enqueue(message("c", run="cancelled"), run="cancelled")
    cell.enqueue(message("l", run="late"), run="late", deadline_ms=-1)
    cell.stage("g", [message(f"g{i}") for i in range(300)])
    cell.open(effects.open_group("g", "p", "normal"), id_="g")
    cell.stage("never opened", [message("x")])
    cell.cancel("cancelled")
    abandon_a_fan_in(cell)
    wait_until(lambda: cell.promote()[1] == 1, "the late run expires")
    wait_until(lambda: not cell.redis("ZCARD", cell.keys.delayed()), "the delayed one is moved",
               timeout=cell.promote()[0] + 5)  # fmt: skip
    work_off(cell)
    cell.release(WORKER)
    return cell


def fan_out(cell: Cell) -> None:
    body = [message("body", run="r")]
    members = [message(f"m{i}", run="r", join=f"j|{i}") for i in range(5)]
    join = effects.join("j", width=5, at_once=2, ttl_ms=60_000, run="r", body=body, members=members)
    cell.enqueue(join, run="r")


def abandon_a_fan_in(cell: Cell) -> None:
    """Cancel a run of which one member has ended and others wait."""
    members = [message(f"x{i}", run="half", join=f"k|{i}", lane="high") for i in range(5)]
    join = effects.join(
        "k", width=5, at_once=2, ttl_ms=60_000, run="half", body=[message("never")], members=members
    )
    cell.enqueue(join, run="half")
    [first] = cell.fetch(WORKER, 1, lanes=["high"])
    assert cell.complete(first, effects.part("k", 0, b"1"), run="half") == "ok"
    assert cell.cancel("half") == 1


def work_off(cell: Cell) -> None:
    while handed := cell.fetch(WORKER, 100):
        for one in handed:
            if one.id == "poison":
                cell.complete(one, effects.dead("why", one.id, 1, b"", b""))
            elif one.id == "body":
                end = effects.end("r", "done", b"1", 60_000)
                assert cell.complete(one, effects.forget("j"), end, run="r") == "ok"
            elif one.id.startswith("m"):
                cell.complete(one, effects.part("j", one.id[1:], b"1"), run="r")
            else:
                cell.complete(one, effects.meta(one.id, 60_000, b"{}"))


def name_of(cell: Cell, key: str) -> str:
    return key.removeprefix(cell.prefix)


def documented() -> list[re.Pattern[str]]:
    """Return the keys of the table at the head of `keys.py`, placeholders open."""
    rows = re.findall(
        r"^ {4}(\S+) +(?:stream|set|list|zset|string|hash) ", keys.__doc__ or "", re.MULTILINE
    )
    assert len(rows) > 20
    return [re.compile(re.sub(r"<\w+>", ".+", row) + "$") for row in rows]


def test_what_is_left_has_a_time_to_live_or_is_permanent(used: Cell) -> None:
    left = {name_of(used, key) for key in used.all_keys() if used.redis("PTTL", key) == -1}
    forever = {name for name in left if not name.startswith(keys.PERMANENT)}
    assert forever == set()
    assert {"lanes", "s:p:normal", "dead", "runs"} <= left


def test_every_key_that_was_written_is_in_the_table(used: Cell) -> None:
    patterns = documented()
    names = {name_of(used, key) for key in used.all_keys()}
    unknown = {name for name in names if not any(p.match(name) for p in patterns)}
    assert unknown == set()


def test_nothing_is_left_of_work_that_ended(used: Cell) -> None:
    lengths = {
        name_of(used, key): used.redis("XLEN", key)
        for key in used.all_keys()
        if name_of(used, key).startswith(("s:", "r:"))
    }
    assert lengths == {"s:p:high": 0, "s:p:normal": 0}
    kinds = ("join:", "open:", "group:", "delayed", "ended", "due", "wake:", "worker")
    assert {
        name_of(used, key) for key in used.all_keys() if name_of(used, key).startswith(kinds)
    } == set()
