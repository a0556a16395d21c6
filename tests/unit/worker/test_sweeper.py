"""When the sweeper makes its rounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentq.settings import Settings
from agentq.store import calls
from agentq.timing.deadline import BrokerClock
from agentq.worker import sweeper
from agentq.worker.outcomes import Outcomes


class Counting(sweeper.Sweeper):
    """Says that it made a round."""

    def __init__(self) -> None:
        store: Any = None
        super().__init__(store=store, settings=Settings(), clock=BrokerClock(), outcomes=Outcomes())
        self.made = asyncio.Event()

    async def round(self) -> bool:
        self.made.set()
        return False


async def _swept(after_ms: int | None) -> bool:
    one = Counting()
    task = asyncio.create_task(one.run())
    if after_ms is not None:
        one.sweep_after(after_ms)
    try:
        async with asyncio.timeout(0.5):
            await one.made.wait()
    except TimeoutError:
        return False
    finally:
        task.cancel()
    return True


@pytest.mark.parametrize(("after_ms", "swept"), [(20, True), (3_600_000, False), (None, False)])
def test_a_round_is_made_when_what_this_worker_delayed_is_due(
    monkeypatch: pytest.MonkeyPatch,
    after_ms: int | None,
    swept: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(sweeper, "EVERY", 3600)
    assert asyncio.run(_swept(after_ms)) is swept


def test_many_workers_sweep_less_often_each_and_no_less_together() -> None:
    assert [sweeper.pace(workers) for workers in (0, 1, 8)] == [0.5] * 3
    assert sweeper.pace(16) == 1.0
    assert sweeper.pace(1000) == 2.0  # were all but one dead, this is what it would cost


def test_a_round_is_made_soon_after_the_first_of_what_is_delayed_is_due() -> None:
    assert sweeper.wait(1, None, 0.5) == sweeper.wait(1, 60.0, 0.5) == 0.5
    assert 0.1 < sweeper.wait(1, 0.1, 0.5) < 0.2
    assert 0 < sweeper.wait(1, -5.0, 0.0) < 0.1


def test_many_workers_do_not_sweep_together_when_something_is_due() -> None:
    waits = [sweeper.wait(1000, 0.1, place / 1000) for place in range(1000)]
    assert sum(one < 0.2 for one in waits) < 20


def test_only_a_failure_with_a_pause_is_due_later() -> None:
    failed = calls.fail("p", "lane", b"s", b"1-0", after_ms=250, retry=True)
    dead = calls.died("p", "lane", b"s", b"1-0", limit=5, keep_ms=86_400_000)
    assert calls.delay_of(failed) == 250
    assert calls.delay_of(calls.fail("p", "lane", b"s", b"1-0", after_ms=0, retry=False)) == 0
    assert calls.delay_of(dead) == 0
    assert calls.delay_of(("FCALL", calls.COMPLETE, 1, "p")) == 0
