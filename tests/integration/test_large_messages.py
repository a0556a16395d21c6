"""No function moves more large messages a call than it has time for, and none is left behind.

One call reads 1 MiB and somewhat more: six messages of 200 KB, or fewer where
it copies them more often.
"""

from __future__ import annotations

import pytest

from agentq.ops import pausing
from agentq.ops.pausing import Kind
from agentq.store import calls, effects
from agentq.store.calls import Fitting
from agentq.store.effects import Message
from tests.support.cell import KEEP_MS, Cell, Handed, message
from tests.support.waiting import wait_until

WORKER = "w1"
COUNT, MOST = 24, 6
BODY = b"x" * 200_000
HEAD = b'{"headers":{"task":"x.a"}}'
NO_TOKENS = "0 1"
"""Of budget and rate: no more than time brings, one a second."""
NAMES = [f"m{n}" for n in range(COUNT)]


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew(WORKER)
    return cell


def large(id_: str, *, due: int = 0, run: str = "", join: str = "") -> Message:
    return message(id_, due=due, run=run, join=join)._replace(headers=HEAD, body=BODY)


def fill(cell: Cell, *, due: int = 0) -> None:
    for name in NAMES:
        cell.enqueue(large(name, due=due))


def fetched(cell: Cell) -> list[Handed]:
    """Fetch until nothing is left; no call hands out more than a piece."""
    found: list[Handed] = []
    while got := cell.fetch(WORKER, 256):
        assert sum(not one.id.startswith("body") for one in got) <= MOST
        found += got
    return found


def ids(handed: list[Handed]) -> list[str]:
    return [one.id for one in handed]


def put_aside(cell: Cell) -> list[int]:
    """Let a pause put all of them aside; return how many each fetch did."""
    fill(cell)
    pausing.pause(cell.store, Kind.STEP, "x.a")
    found = []
    while left := cell.redis("XLEN", f"{cell.prefix}s:p:normal"):
        assert cell.fetch(WORKER, 256) == []
        found.append(left - cell.redis("XLEN", f"{cell.prefix}s:p:normal"))
    return found


def test_they_are_handed_out_by_the_piece_and_the_rest_is_asked_for(cell: Cell) -> None:
    fill(cell)
    first = cell.fetch(WORKER, 256)
    assert len(first) == MOST
    assert cell.redis("LLEN", f"{cell.prefix}wake:{WORKER}") >= 1
    assert ids(first + fetched(cell)) == NAMES


def test_behind_small_ones_they_are_handed_out_by_the_piece_too(cell: Cell) -> None:
    small = [f"small-{n}" for n in range(100)]
    cell.enqueue(*map(message, small))
    fill(cell)
    first = ids(cell.fetch(WORKER, 256))
    assert first[:100] == small
    assert 0 < len(first[100:]) <= 2 * MOST
    assert first + ids(fetched(cell)) == small + NAMES


def test_a_group_comes_into_its_lane_by_the_piece(cell: Cell) -> None:
    cell.stage("g", [large(name) for name in NAMES])
    cell.open(effects.open_group("g", "p", "normal"))
    first = cell.fetch(WORKER, 256)
    assert 0 < len(first) <= MOST
    assert cell.redis("LLEN", f"{cell.prefix}group:g") >= COUNT - MOST
    assert ids(first + fetched(cell)) == NAMES


def test_a_pause_puts_them_aside_and_gives_them_back_by_the_piece(cell: Cell) -> None:
    assert max(put_aside(cell)) <= MOST
    call = calls.resume(cell.prefix, "step:x.a", 500)
    assert cell.store.call(call) == [1, MOST, COUNT - MOST]
    assert pausing.resume(cell.store, Kind.STEP, "x.a").brought_back == COUNT - MOST
    assert ids(fetched(cell)) == NAMES


@pytest.mark.parametrize("by", ["release", "reap"])
def test_what_a_worker_held_is_handed_back_by_the_piece(cell: Cell, by: str) -> None:
    fill(cell)
    fetched(cell)
    rounds = []
    if by == "release":
        while cell.release(WORKER) >= calls.HANDED_BACK:
            assert cell.redis("ZSCORE", cell.keys.workers(), WORKER) is not None
            rounds.append(cell.redis("XLEN", f"{cell.prefix}r:p:normal"))
        assert rounds == list(range(MOST, COUNT + 1, MOST))
    else:
        cell.expire_lease(WORKER)
        while (got := cell.reap())[1]:
            rounds.append(got[0])
        assert rounds == [MOST] * (COUNT // MOST) + [0]
    assert cell.redis("ZSCORE", cell.keys.workers(), WORKER) is None
    cell.renew(WORKER)
    assert sorted(ids(fetched(cell))) == sorted(NAMES)


def test_they_are_moved_by_the_piece_when_they_are_due(cell: Cell) -> None:
    fill(cell, due=-1)
    rounds, moved = [], 0
    wait_until(
        lambda: (
            cell.now_ms()
            > float(cell.redis("ZRANGE", cell.keys.delayed(), -1, -1, "WITHSCORES")[-1][-1])
        ),
        "all are due",
    )
    while cell.promote(200)[0] >= 200:
        depth = cell.redis("XLEN", f"{cell.prefix}s:p:normal")
        rounds.append(depth - moved)
        moved = depth
    assert rounds == [MOST] * (COUNT // MOST)
    assert sorted(ids(fetched(cell))) == sorted(NAMES)


def let_retries_wait(cell: Cell) -> list[int]:
    """Let all be retries that wait for tokens; return how many each sweep set waiting."""
    again = [effects.again(large(name, due=-1)) for name in NAMES]
    cell.store.call(calls.complete(cell.prefix, "", "", "", KEEP_MS, again))
    cell.fill_bucket(0)
    rounds = []
    while len(NAMES) > sum(rounds):
        before = cell.redis("ZCARD", cell.keys.retries("p"))
        cell.promote(200, NO_TOKENS)
        rounds.append(cell.redis("ZCARD", cell.keys.retries("p")) - before)
    return rounds


def tokens(cell: Cell) -> int:
    left = "return cmsgpack.unpack(redis.call('HGET', KEYS[1], 'b'))[2]"
    return int(cell.redis("EVAL", left, 1, f"{cell.prefix}load:p"))


def test_retries_wait_and_start_by_the_piece_and_each_for_one_token(cell: Cell) -> None:
    assert max(let_retries_wait(cell)) <= MOST
    cell.fill_bucket(COUNT + 1)
    assert cell.promote(200, NO_TOKENS)[0] == 200
    assert cell.redis("XLEN", f"{cell.prefix}s:p:normal") == MOST
    assert COUNT - MOST - 1 <= tokens(cell) <= COUNT - MOST + 1
    cell.fill_bucket(COUNT)
    while cell.promote(200, NO_TOKENS)[0] >= 200:
        pass
    assert sorted(ids(fetched(cell))) == sorted(NAMES)


def test_what_is_delayed_of_an_ended_run_is_dropped_by_the_piece_and_holds_nothing_up(
    cell: Cell,
) -> None:
    cell.enqueue(*(large(name, due=-60_000, run="r") for name in NAMES), run="r")
    cell.cancel("r")
    cell.enqueue(large("due", due=-1))
    due = float(cell.redis("ZRANGE", cell.keys.delayed(), 0, 0, "WITHSCORES")[-1][-1])
    wait_until(lambda: cell.now_ms() > due, "it is due")
    rounds, left = [], COUNT
    while left:
        assert cell.promote(200)[0] == 200
        there = cell.redis("HLEN", f"{cell.prefix}delayed:m")
        rounds.append(left - there)
        left = there
        assert cell.redis("XLEN", f"{cell.prefix}s:p:normal") == 1
    assert rounds == [MOST // 2] * (2 * COUNT // MOST)
    while cell.promote(200)[0] >= 200:
        pass
    kept = {f"{cell.prefix}{name}" for name in ("ended", "delayed", "delayed:m", "delayed:r:r")}
    assert not kept & cell.all_keys()
    assert ids(fetched(cell)) == ["due"]


def test_what_is_purged_of_what_is_delayed_is_noted_nowhere(cell: Cell) -> None:
    let_retries_wait(cell)
    cell.enqueue(large("step", due=-60_000, run="r"), run="r")
    assert pausing.purge(cell.store, Fitting(), reason="why") == COUNT + 1
    kept = {cell.keys.retries("p"), f"{cell.prefix}delayed:m", f"{cell.prefix}delayed:r:r"}
    assert not kept & cell.all_keys()
    cell.promote(200)
    assert not cell.redis("EXISTS", cell.keys.retrying())


@pytest.mark.parametrize("source", ["s:p:normal", "delayed", "aside:step:x.a", "group"])
def test_they_are_looked_through_and_purged_by_the_piece(cell: Cell, source: str) -> None:
    if source == "aside:step:x.a":
        put_aside(cell)
    elif source == "group":
        cell.stage("g", [large(name) for name in NAMES])
        cell.open(effects.open_group("g", "p", "normal"))
        source = "s:p:normal"
    else:
        fill(cell, due=-60_000 if source == "delayed" else 0)
    most = COUNT if source == "delayed" else MOST  # servers walk a hash by whole buckets
    _, seen, _ = cell.store.call(calls.find(cell.prefix, source, b"", 500, "r"))
    assert seen <= most
    _, moved, full = cell.store.call(
        calls.purge(cell.prefix, source, b"", 200, reason="why", fitting=Fitting())
    )
    assert 0 < moved <= most
    assert full == 0
    assert pausing.purge(cell.store, Fitting(), reason="why") == COUNT - moved
    assert sorted(one[b"i"].decode() for one in cell.dead_letters()) == sorted(NAMES)


def fan_out(cell: Cell, join: str, at_once: int) -> None:
    members = [large(f"{join}-{n}", join=f"{join}|{n}") for n in range(COUNT)]
    cell.stage(f"{join}@1", members)
    body = [message(f"body-{join}")]
    cell.open(
        effects.join(
            join, width=COUNT, at_once=at_once, ttl_ms=KEEP_MS, run="", body=body,
            members=f"{join}@1",
        )
    )  # fmt: skip


def test_members_of_a_fan_out_are_queued_by_the_piece_and_each_once(cell: Cell) -> None:
    """What an opening leaves out comes with the outcomes, up to as many at once as are allowed."""
    at_once = COUNT - 4
    fan_out(cell, "j", at_once)
    assert cell.redis("XLEN", f"{cell.prefix}s:p:normal") == MOST
    done: list[str] = []
    most = 0
    under_way: list[Handed] = fetched(cell)
    while under_way[0].id != "body-j":
        most = max(most, len(under_way))
        assert len(under_way) <= at_once
        first = under_way.pop(0)
        depth = cell.redis("LLEN", f"{cell.prefix}join:j:wait")
        cell.complete(first, effects.part("j", first.id.partition("-")[2], b"1"))
        assert depth - cell.redis("LLEN", f"{cell.prefix}join:j:wait") <= MOST
        done.append(first.id)
        under_way += fetched(cell)
    assert most == at_once
    assert sorted(done) == sorted(f"j-{n}" for n in range(COUNT))
    assert ids(under_way) == ["body-j"]


def test_no_fan_in_stands_still_where_one_call_ends_members_of_several(cell: Cell) -> None:
    joins = ("j", "k", "l")
    for join in joins:
        fan_out(cell, join, at_once=MOST)
    done: list[str] = []
    while under_way := fetched(cell):
        cell.complete_many(
            [
                (one, "", [effects.part(one.id[0], one.id.partition("-")[2], b"1")])
                if one.id[0] in joins
                else (one, "", [])
                for one in under_way
            ]
        )
        done += ids(under_way)
    everyone = [f"{join}-{n}" for join in joins for n in range(COUNT)]
    assert sorted(done) == sorted([*everyone, *(f"body-{join}" for join in joins)])
