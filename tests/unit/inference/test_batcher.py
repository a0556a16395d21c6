from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import pytest

from agentq.errors import (
    BatcherStopped,
    BatchQueueFull,
    ModelAnswerInvalid,
    ModelTimeout,
    ModelUnavailable,
)
from agentq.inference.batcher import Batcher, BatchResult
from agentq.inference.policy import BatchLimits, Close

SOON = BatchLimits(max_items=16, window_ms=15)
NEVER = BatchLimits(max_items=16, window_ms=60_000)  # a test that closes by it runs into its limit


class Backend:
    """Doubles numbers; fails for those under its ban; can be held."""

    def __init__(self, *, held: bool = False, banned: Sequence[int] = ()) -> None:
        self.batches: list[list[int]] = []
        self.banned = set(banned)
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        if not held:
            self.go.set()

    async def __call__(self, items: list[int]) -> list[int | Exception]:
        self.batches.append(items)
        self.began.set()
        await self.go.wait()
        if self.banned.intersection(items):
            raise ValueError(f"bad item in {items}")
        return [item * 2 for item in items]


def with_batcher(
    scenario: Callable[[Batcher[int, int], Backend], Awaitable[None]],
    *,
    limits: BatchLimits = NEVER,
    held: bool = False,
    banned: Sequence[int] = (),
    capacity: int = 100,
) -> None:
    async def play() -> None:
        backend = Backend(held=held, banned=banned)
        batcher: Batcher[int, int] = Batcher(
            name="double", run=backend, limits=limits, capacity=capacity
        )
        await batcher.start()
        try:
            await asyncio.wait_for(scenario(batcher, backend), 10)
        finally:
            await batcher.stop()

    asyncio.run(play())


def test_sixteen_calls_become_one_and_each_gets_its_own_result() -> None:
    async def scenario(batcher: Batcher[int, int], backend: Backend) -> None:
        results = await asyncio.gather(*(batcher.submit(i) for i in range(16)))
        assert [result.value for result in results] == [i * 2 for i in range(16)]
        assert {result.size for result in results} == {16}
        assert backend.batches == [list(range(16))]
        assert batcher.stats.closed == {Close.FULL: 1}
        assert batcher.stats.mean_size == 16

    with_batcher(scenario)


def test_a_lone_call_waits_for_the_window_and_no_longer() -> None:
    async def scenario(batcher: Batcher[int, int], _: Backend) -> None:
        result = await batcher.submit(4)
        assert (result.value, result.size) == (8, 1)
        assert 15 <= result.waited_ms < 1000
        assert batcher.stats.closed == {Close.WINDOW: 1}

    with_batcher(scenario, limits=SOON)


def test_all_siblings_close_their_batch_at_once() -> None:
    async def scenario(batcher: Batcher[int, int], backend: Backend) -> None:
        calls = [batcher.submit(i, group="fan-out", siblings=3) for i in range(3)]
        await asyncio.gather(*calls)
        assert backend.batches == [[0, 1, 2]]
        assert batcher.stats.closed == {Close.SIBLINGS: 1}

    with_batcher(scenario)


def test_a_fan_out_wider_than_a_batch_ends_without_the_window() -> None:
    async def scenario(batcher: Batcher[int, int], backend: Backend) -> None:
        calls = [batcher.submit(i, group="fan-out", siblings=20) for i in range(20)]
        await asyncio.gather(*calls)
        assert [len(batch) for batch in backend.batches] == [16, 4]
        assert batcher.stats.closed == {Close.FULL: 1, Close.SIBLINGS: 1}

    with_batcher(scenario)


def test_while_a_batch_runs_the_next_one_collects() -> None:
    async def scenario(batcher: Batcher[int, int], backend: Backend) -> None:
        first = asyncio.create_task(batcher.submit(1))
        await backend.began.wait()
        more = [asyncio.create_task(batcher.submit(i)) for i in (2, 3, 4)]
        await asyncio.sleep(0)
        assert backend.batches == [[1]]
        backend.go.set()
        await asyncio.gather(first, *more)
        assert backend.batches == [[1], [2, 3, 4]]

    with_batcher(scenario, limits=BatchLimits(window_ms=0), held=True)


@pytest.mark.parametrize("bad", [0, 7, 15])
def test_one_bad_item_of_sixteen_fails_alone(bad: int) -> None:
    async def scenario(batcher: Batcher[int, int], _: Backend) -> None:
        calls = (batcher.submit(i) for i in range(16))
        results = await asyncio.gather(*calls, return_exceptions=True)
        failed = {i for i, result in enumerate(results) if isinstance(result, Exception)}
        assert failed == {bad}
        assert isinstance(results[bad], ValueError)
        good = [r.value for r in results if isinstance(r, BatchResult)]
        assert good == [i * 2 for i in range(16) if i != bad]
        assert batcher.stats.halved == 4  # 16, 8, 4, 2

    with_batcher(scenario, banned=[bad])


def returning(answer: Callable[[list[int]], list[int | Exception]]) -> Batcher[int, int]:
    async def run(items: list[int]) -> list[int | Exception]:
        return answer(items)

    return Batcher(name="scripted", run=run, limits=BatchLimits(max_items=2, window_ms=60_000))


async def both(batcher: Batcher[int, int]) -> list[BatchResult[int] | BaseException]:
    await batcher.start()
    calls = (batcher.submit(i) for i in (1, 2))
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    await batcher.stop()
    return results


def test_an_exception_in_the_answer_is_its_own_item_s() -> None:
    error = KeyError("mine")
    good, bad = asyncio.run(both(returning(lambda items: [items[0], error])))
    assert isinstance(good, BatchResult)
    assert good.value == 1
    assert bad is error


def test_an_answer_of_the_wrong_length_is_nobody_s() -> None:
    results = asyncio.run(both(returning(lambda items: [items[0]])))
    assert [type(result) for result in results] == [ModelAnswerInvalid, ModelAnswerInvalid]
    assert "1 values for 2 items" in str(results[0])


def test_a_transport_error_goes_to_all_and_is_not_tried_piece_by_piece() -> None:
    calls = []

    def unreachable(items: list[int]) -> list[int | Exception]:
        calls.append(items)
        raise ModelUnavailable("gone")

    results = asyncio.run(both(returning(unreachable)))
    assert [type(result) for result in results] == [ModelUnavailable, ModelUnavailable]
    assert calls == [[1, 2]]


def test_a_cancelled_call_is_dropped_before_its_batch_is_sent() -> None:
    async def scenario(batcher: Batcher[int, int], backend: Backend) -> None:
        first = asyncio.create_task(batcher.submit(1))
        await backend.began.wait()
        unwanted, wanted = (asyncio.create_task(batcher.submit(i)) for i in (2, 3))
        await asyncio.sleep(0)
        unwanted.cancel()
        backend.go.set()
        await asyncio.gather(first, wanted)
        assert backend.batches == [[1], [3]]
        assert batcher.stats.dropped == 1

    with_batcher(scenario, limits=BatchLimits(window_ms=0), held=True)


def test_an_expired_call_is_dropped_and_told_so() -> None:
    async def scenario(batcher: Batcher[int, int], backend: Backend) -> None:
        first = asyncio.create_task(batcher.submit(1))
        await backend.began.wait()
        with pytest.raises(ModelTimeout, match="'double' had no result within 20ms"):
            await batcher.submit(2, timeout=timedelta(milliseconds=20))
        backend.go.set()
        await first
        assert (await batcher.submit(3)).value == 6
        assert backend.batches == [[1], [3]]

    with_batcher(scenario, limits=BatchLimits(window_ms=0), held=True)


def test_a_call_cancelled_while_its_batch_runs_leaves_the_others_alone() -> None:
    async def scenario(batcher: Batcher[int, int], backend: Backend) -> None:
        calls = [asyncio.create_task(batcher.submit(i)) for i in range(16)]
        await backend.began.wait()
        calls[5].cancel()
        backend.go.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(result, BatchResult) for result in results) == 15
        assert isinstance(results[5], asyncio.CancelledError)

    with_batcher(scenario, held=True)


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    async def scenario(batcher: Batcher[int, int], backend: Backend) -> None:
        running = asyncio.create_task(batcher.submit(0))
        await backend.began.wait()
        waiting = [asyncio.create_task(batcher.submit(i)) for i in (1, 2, 3)]
        await asyncio.sleep(0)
        with pytest.raises(BatchQueueFull) as caught:
            await batcher.submit(4)
        assert (caught.value.waiting, caught.value.limit) == (3, 3)
        assert caught.value.retry_after > timedelta(0)
        await asyncio.sleep(0)  # the batcher has looked at what waits
        waiting[0].cancel()
        await asyncio.sleep(0)
        successor = asyncio.create_task(batcher.submit(5))  # has the cancelled one's place
        await asyncio.sleep(0)
        backend.go.set()
        assert (await successor).value == 10
        await running

    with_batcher(scenario, limits=BatchLimits(window_ms=1), held=True, capacity=3)


def test_items_of_unlike_length_are_sent_apart() -> None:
    async def scenario() -> None:
        batches: list[list[str]] = []

        async def run(items: list[str]) -> list[int]:
            batches.append(items)
            return [len(item) for item in items]

        batcher: Batcher[str, int] = Batcher(
            name="texts", run=run, limits=BatchLimits(max_items=4, window_ms=15), length=len
        )
        await batcher.start()
        texts = ["a" * 10, "b" * 3000, "c" * 12, "d" * 11]
        results = await asyncio.gather(*(batcher.submit(text) for text in texts))
        assert [result.value for result in results] == [10, 3000, 12, 11]
        assert batches == [[texts[0], texts[2], texts[3]], [texts[1]]]
        await batcher.stop()

    asyncio.run(scenario())


def test_stopping_ends_what_waits_and_what_runs() -> None:
    async def scenario(batcher: Batcher[int, int], backend: Backend) -> None:
        running = asyncio.create_task(batcher.submit(1))
        await backend.began.wait()
        waiting = asyncio.create_task(batcher.submit(2))
        await asyncio.sleep(0)
        await batcher.stop()
        results = await asyncio.gather(running, waiting, return_exceptions=True)
        assert [type(result) for result in results] == [BatcherStopped, BatcherStopped]

    with_batcher(scenario, limits=BatchLimits(window_ms=0), held=True)


def test_start_and_stop_are_safe_twice_and_a_stopped_batcher_can_start_again() -> None:
    async def scenario(batcher: Batcher[int, int], _: Backend) -> None:
        await batcher.start()
        await batcher.stop()
        await batcher.stop()
        with pytest.raises(BatcherStopped, match="not started"):
            await batcher.submit(1)
        await batcher.start()
        assert (await batcher.submit(1)).value == 2

    with_batcher(scenario, limits=SOON)
