"""A worker near its memory limit takes no more work, and goes before the kernel ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from agentq.ops.status import read_status
from agentq.worker.load import NO_MEMORY
from tests.support.ledger import Ledger
from tests.support.running import Running, running
from tests.support.waiting import wait_until

LIMIT = 256
MODULE = "tests.support.apps.holding"


@pytest.fixture
def holding(url: str, ledger: Ledger) -> Iterator[Running]:
    limit = {f"POOLS__{pool}__MEMORY": str(LIMIT << 20) for pool in ("SHARED", "CRITICAL")}
    with running(
        MODULE, url, ledger, **limit, WORKER__DRAIN_TIMEOUT="1s", WORKER__LEASE="1s"
    ) as app:
        yield app


def hold_up_to(holding: Running, share: float) -> int:
    """Return how many megabytes bring the one worker there is to *share* of its limit."""
    store = holding.app.aq.store
    [worker] = wait_until(lambda: read_status(store).workers, "a worker that reports")
    return round(LIMIT * share - worker.memory / 2**20)


def test_a_worker_near_its_limit_waits_until_memory_is_free_again(holding: Running) -> None:
    worker = holding.worker()
    held = holding.app.holding.submit(hold_up_to(holding, 0.9))
    wait_until(lambda: "taking no more work until" in worker.log(), worker.log)
    wait_until(
        lambda: [one.slots for one in read_status(holding.app.aq.store).workers] == [0],
        "status shows no slots",
    )
    runs = [holding.app.smalls.submit(number) for number in range(5)]
    time.sleep(1)  # what is asserted is that nothing happens
    assert holding.ledger.lines("small") == []

    holding.app.release_file().touch()

    assert held.result(timeout=15) == "w@test"
    assert [run.result(timeout=15) for run in runs] == ["w@test"] * 5
    assert holding.ledger.counts("small") == {f"small {number}": 1 for number in range(5)}
    assert len(holding.ledger.lines("holds")) == 1
    assert "taking work again" in worker.log()


def test_a_worker_that_stays_at_its_limit_drains_and_goes_and_its_step_runs_alone(
    holding: Running,
) -> None:
    full = holding.worker("full")
    held = holding.app.holding.submit(hold_up_to(holding, 1.05))
    wait_until(lambda: "taking no more work until" in full.log(), full.log)
    runs = [holding.app.smalls.submit(number) for number in range(5)]
    assert full.wait_ended() == NO_MEMORY, full.log()
    fresh = holding.worker("fresh")

    assert [run.result(timeout=15) for run in runs] == ["fresh@test"] * 5
    _, again = wait_until(lambda: len(found := holding.ledger.lines("holds")) == 2 and found, "x")
    assert again.split()[1] == "fresh@test"
    assert int(again.split()[2]) != fresh.pid
    holding.app.release_file().touch()
    assert held.result(timeout=15) == "fresh@test"
    assert holding.ledger.counts("small") == {f"small {number}": 1 for number in range(5)}
    assert len(holding.ledger.lines("held")) == 1
    assert read_status(holding.app.aq.store).dead.number == 0
    assert fresh.alive()
    assert "charged" not in fresh.log()


def test_a_limit_below_what_a_worker_needs_at_all_is_said_and_not_kept(
    url: str, ledger: Ledger
) -> None:
    with running(MODULE, url, ledger, POOLS__SHARED__MEMORY=str(64 << 20)) as app:
        worker = app.worker(options=("-Q", "shared"))
        assert app.app.smalls.submit(1).result(timeout=15) == "w@test"
        assert "before any work, and its limit is 64 MB" in worker.log()
