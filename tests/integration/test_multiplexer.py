"""Callers that share a connection each get an answer, whatever happens to the trip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from agentq.errors import BrokerUnavailable
from agentq.store.address import parse
from agentq.store.calls import Call
from agentq.store.client import AsyncStore
from agentq.store.multiplexer import Multiplexer


class OnceFaulty(AsyncStore):
    """A store whose first trip fails on the way."""

    fault: Exception | None = None

    async def pipeline(self, calls: Sequence[Call]) -> list[Any]:
        await asyncio.sleep(0)
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        return await super().pipeline(calls)


@pytest.mark.parametrize("fault", [RuntimeError("cut"), ValueError("not RESP"), OSError("gone")])
def test_each_caller_gets_what_ended_the_trip_and_the_next_trip_goes(
    url: str, fault: Exception
) -> None:
    async def use() -> tuple[list[Any], Any]:
        store = OnceFaulty(address=parse(url), timeout=timedelta(seconds=5))
        store.fault = fault
        cell = Multiplexer(store)
        both = (cell.call(("PING",)) for _ in range(2))
        first = await asyncio.gather(*both, return_exceptions=True)
        second = await cell.call(("PING",))
        await store.close()
        return first, second

    first, second = asyncio.run(use())

    assert first == [fault, fault]
    assert second in (b"PONG", "PONG", True)


def test_a_link_that_uvloop_finds_closed_is_a_broker_away(url: str) -> None:
    class Closed(AsyncStore):
        async def _pipelined(self, calls: Sequence[Call]) -> list[Any]:
            raise RuntimeError(f"unable to perform operation on <UnixTransport>: {len(calls)}")

    store = Closed(address=parse(url), timeout=timedelta(seconds=5))

    with pytest.raises(BrokerUnavailable, match="was cut"):
        asyncio.run(store.pipeline([("PING",)]))


def test_who_is_cancelled_at_any_moment_of_a_trip_is_cancelled(url: str) -> None:
    async def cancelled() -> list[bool]:
        store = AsyncStore(address=parse(url), timeout=timedelta(seconds=5))

        async def ask() -> None:
            while True:
                await store.pipeline([("PING",)])

        ended = []
        for rounds in range(200):
            task = asyncio.create_task(ask())
            for _ in range(10 + rounds % 20):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=1)
            ended.append(task in done)
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
        await store.close()
        return ended

    assert all(asyncio.run(cancelled()))
