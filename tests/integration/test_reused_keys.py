"""A key whose run was kept its time and is gone begins a new run, which nothing of the old one touches."""

from __future__ import annotations

import pytest

from agentq.errors import QueueFull
from agentq.store import calls, effects
from agentq.store.calls import Accepted, Duplicate, Full
from tests.support.cell import Cell, message
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.waiting import wait_until

WORKER = "w1"
HOUR = 3_600_000


@pytest.fixture
def cell(url: str) -> Cell:
    cell = Cell(url)
    cell.renew(WORKER)
    return cell


def delayed(cell: Cell, count: int) -> None:
    """Let retries of a run *r* wait for an hour, and the run be gone before anybody sweeps."""
    cell.enqueue(*(message(f"old{n}", run="r") for n in range(count)), run="r")
    for handed in cell.fetch(WORKER, count):
        cell.fail(handed, after_ms=HOUR)
    gone(cell)


def gone(cell: Cell) -> None:
    assert cell.store.call(calls.cancel(cell.prefix, "r", 1)) == 1
    wait_until(lambda: not cell.redis("EXISTS", cell.keys.run("r")), "it is gone")


def fan_out(width: int) -> effects.Effect:
    members = [message(f"m{n}", run="r", join=f"r:1|{n}") for n in range(width)]
    body = [message("body", run="r")]
    return effects.join(
        "r:1", width=width, at_once=1, ttl_ms=HOUR, run="r", body=body, members=members
    )


def test_a_worker_that_heard_of_the_cancel_runs_the_next_run_of_the_key(
    url: str, ledger: Ledger
) -> None:
    with running("tests.support.apps.flows", url, ledger, RUNS__KEEP="1s") as app:
        worker = app.worker()
        flow, cell = app.app.aq.get_flow("sleeping"), Cell(url)
        cancelled = flow.submit(60.0, key="ticket")
        wait_until(lambda: ledger.lines(f"sleeper began {cancelled.id}"), worker.log)
        assert cancelled.cancel()
        wait_until(lambda: not cell.redis("EXISTS", cell.keys.run(cancelled.id)), "it is gone")
        again = flow.submit(0.0, key="ticket")
        assert (again.id, again.duplicate) == (cancelled.id, False)
        assert again.result(timeout=10) == 0
        assert len(ledger.lines(f"sleeper ended {again.id}")) == 1


def test_what_the_last_run_of_a_key_left_delayed_is_not_of_the_next(cell: Cell) -> None:
    delayed(cell, 3)
    assert isinstance(cell.enqueue(message("new", run="r"), run="r"), Accepted)
    assert cell.redis("HLEN", cell.keys.delayed_messages()) == 0
    assert not cell.redis("EXISTS", f"{cell.prefix}delayed:r:r")


def test_a_retry_of_a_run_is_kept_that_began_anew_where_another_had_ended(cell: Cell) -> None:
    delayed(cell, 1)
    cell.enqueue(message("new", run="r"), run="r")
    [new] = cell.fetch(WORKER)
    cell.fail(new, after_ms=1)
    assert cell.redis("SMEMBERS", f"{cell.prefix}ended") == {b"r"}
    wait_until(lambda: cell.promote()[0] == 1, "it is due")
    assert [(one.id, one.live) for one in cell.fetch(WORKER)] == [("new", True)]
    assert not cell.redis("EXISTS", f"{cell.prefix}ended")
    assert cell.run_state("r") == "running"


def test_the_members_of_a_fan_out_are_queued_though_the_last_run_of_the_key_left_it(
    cell: Cell,
) -> None:
    cell.enqueue(fan_out(5), run="r")
    assert len(cell.fetch(WORKER)) == 1
    gone(cell)
    assert isinstance(cell.enqueue(fan_out(2), run="r"), Accepted)
    assert cell.redis("HGET", cell.keys.join("r:1"), "width") == b"2"
    for number in range(2):
        [member] = cell.fetch(WORKER)
        assert cell.complete(member, effects.part("r:1", number, b"1"), run="r") == "ok"
    assert [one.id for one in cell.fetch(WORKER)] == ["body"]


def test_a_run_that_left_much_is_dropped_by_the_piece_before_its_key_is_taken(cell: Cell) -> None:
    delayed(cell, 450)
    answers = [cell.enqueue(message("new", run="r"), run="r") for _ in range(4)]
    assert [one.depth for one in answers if isinstance(one, Full)] == [250, 50]
    assert isinstance(answers[2], Accepted)
    assert isinstance(answers[3], Duplicate)
    full = answers[0]
    error = QueueFull(
        "p", depth=full.depth, limit=full.limit, retry_after=full.retry_after, reason=full.reason
    )
    assert str(error) == (
        "250 messages and fan-ins of this key's last run are still to be dropped; "
        "try again in 0.1 s or raise runs.keep"
    )
    assert [one.id for one in cell.fetch(WORKER)] == ["new"]
