"""Ageing: under a full `high` lane the oldest step of every lower lane starts within a stated bound."""

from __future__ import annotations

from uuid import uuid4

import pytest

from agentq.broker.policy import InOrder
from agentq.broker.routing import LANES
from agentq.ops.pausing import Kind, pause, resume
from agentq.store import calls
from tests.support.cell import Cell, message
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import running
from tests.support.waiting import wait_until

LOWER = LANES[1:]
SHARE = 8
BOUND = SHARE * len(LOWER)
"""Fetches of one step each."""


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew("w")
    return cell


def fetched(cell: Cell, policy: InOrder, room: int, turn: int) -> list[str]:
    quotas = policy.quotas(room, turn)
    _, entries = cell.store.call(calls.fetch(cell.prefix, "w", "p", room, 0, quotas))
    return [dict(zip(e[3][::2], e[3][1::2], strict=True))[b"i"].decode() for e in entries]


def fill(cell: Cell, lanes: tuple[str, ...], count: int) -> None:
    for lane in lanes:
        cell.enqueue(*(message(f"{lane} {n}", lane=lane) for n in range(count)), limit=10_000)


@pytest.mark.parametrize("start", [0, 5, 7, 30])
@pytest.mark.parametrize("lane", LOWER)
def test_the_oldest_of_a_lower_lane_starts_within_24_single_fetches_though_all_are_full(
    cell: Cell, lane: str, start: int
) -> None:
    fill(cell, LANES, BOUND)
    policy, took = InOrder(LANES), []
    for turn in range(start, start + BOUND):
        took += fetched(cell, policy, 1, turn)
    assert f"{lane} 0" in took
    assert took.count("high 0") == 1
    assert sum(one.startswith("high") for one in took) == BOUND * (SHARE - 1) // SHARE


def test_with_room_for_more_every_lower_lane_has_its_share_within_eight_fetches(cell: Cell) -> None:
    fill(cell, LANES, 1000)
    took = [one for turn in range(SHARE) for one in fetched(cell, InOrder(LANES), 80, turn)]
    counts = {lane: sum(one.startswith(f"{lane} ") for one in took) for lane in LANES}
    assert counts == {"high": 7 * 80 + 50, "normal": 10, "long": 10, "low": 10}


@pytest.mark.parametrize(
    "options", [(), ("-P", "prefork", "-c", "1", "--prefetch-multiplier", "1")],
    ids=["ours", "prefork"],
)  # fmt: skip
def test_a_worker_with_one_slot_starts_the_oldest_low_step_within_24_steps(
    session_server: Server, ledger: Ledger, options: tuple[str, ...]
) -> None:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    with running("tests.support.apps.faults", url, ledger, WORKER__SLOTS="1") as app:
        store, flow = app.app.aq.store, app.app.aq.get_flow("one")
        pause(store, Kind.POOL, "shared")
        flow.submit_many(range(100), priority="high")
        for number, lane in enumerate(LOWER, 1000):
            flow.submit(number, priority=lane)
        app.worker(options=("-Q", "critical,shared", *options))
        resume(store, Kind.POOL, "shared")
        wait_until(lambda: len(ledger.lines("quick")) == 103, ledger.lines, timeout=25)
        order = [int(line.split()[1]) for line in ledger.lines("quick")]
        assert all(order.index(number) < BOUND for number in (1000, 1001, 1002))
