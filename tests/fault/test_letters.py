"""Who handles dead letters is killed in the middle: given again, the command does the rest."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest

from agentq.ops.dead import Wanted, kept, letters, questions
from agentq.store import calls, effects
from tests.support.cell import KEEP_MS, Cell
from tests.support.command_line import Home, home
from tests.support.waiting import wait_until

MANY = 9_000


@pytest.fixture
def user() -> Iterator[Home]:
    with home() as found:
        yield found


@pytest.fixture
def cell(url: str) -> Cell:
    """A cell with `MANY` letters, each third of them of another reason."""
    cell = Cell(url)
    for start in range(0, MANY, 1000):
        some = [
            effects.dead(f"reason {n % 3}", f"t{n}", 0, b"head", b"body", pool="p", lane="normal")
            for n in range(start, start + 1000)
        ]
        cell.store.call(calls.complete(cell.prefix, "", "", "", KEEP_MS, some))
    return cell


def killed_in_the_middle(user: Home, cell: Cell, url: str, *command: str) -> int:
    """Kill the command once it has begun; return how many letters there still are."""
    env = user.environment(AGENTQ_BROKER__URL=url)
    with subprocess.Popen(user.command(*command), env=env, cwd=user.work) as process:
        wait_until(lambda: cell.redis("XLEN", cell.keys.dead()) < MANY, "it has begun")
        process.kill()
    left = int(cell.redis("XLEN", cell.keys.dead()))
    assert (process.returncode, 0 < left < MANY) == (-9, True)
    return left


def replayed(cell: Cell) -> Counter[str]:
    entries = cell.redis("XRANGE", cell.keys.stream("p", "normal"), "-", "+")
    return Counter(fields[b"i"].decode() for _, fields in entries)


def bytes_left(cell: Cell) -> int:
    return kept(*cell.store.pipeline(questions(cell.keys))).bytes


def test_a_replay_that_is_killed_and_given_again_moves_each_letter_once(
    user: Home, cell: Cell, url: str
) -> None:
    left = killed_in_the_middle(user, cell, url, "dead", "replay", "--all")
    assert len(replayed(cell)) == MANY - left
    done = user.json("dead", "replay", "--all", env={"AGENTQ_BROKER__URL": url})
    assert done == {"replayed": left, "refused": {}}
    assert replayed(cell) == {f"t{n}": 1 for n in range(MANY)}
    assert (list(letters(cell.store, Wanted())), bytes_left(cell)) == ([], 0)


def test_a_drop_that_is_killed_and_given_again_drops_what_fits_and_no_more(
    user: Home, cell: Cell, url: str
) -> None:
    command = ("dead", "drop", "--reason", "reason 1", "--yes")
    left = killed_in_the_middle(user, cell, url, *command)
    done = user.json(*command, env={"AGENTQ_BROKER__URL": url})
    assert done == {"dropped": left - MANY * 2 // 3}
    assert [one.task_id for one in letters(cell.store, Wanted())] == [
        f"t{n}" for n in range(MANY) if n % 3 != 1
    ]
    assert bytes_left(cell) == MANY * 2 // 3 * len("reason 1headbody")
