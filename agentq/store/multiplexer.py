"""Many coroutines, one connection: what they ask at about the same time goes in one round trip.

A connection for each would exhaust the pool at a few hundred steps that start together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.store.calls import Call
    from agentq.store.client import AsyncStore

_MOST = 256
"""Calls in one pipeline."""


class Multiplexer:
    """Belongs to one event loop; needs no start."""

    def __init__(self, store: AsyncStore) -> None:
        """Keep the store, whose connection is used for nothing that blocks."""
        self.store = store
        self._waiting: deque[tuple[Call, asyncio.Future[Any]]] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def call(self, call: Call) -> Any:
        """Send *call* with the next trip and return its answer.

        Raises:
            BrokerUnavailable: no answer in time.
            redis.exceptions.ResponseError: the server refused this call.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="agentq-multiplexer")
        return await future

    async def _send(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
            try:
                replies = await self.store.pipeline([call for call, _ in batch])
            except Exception as error:  # noqa: BLE001 -- each caller gets it; nobody waits for ever
                replies = [error] * len(batch)
            for (_, future), reply in zip(batch, replies, strict=True):
                if future.done():
                    continue  # its step was cancelled
                if isinstance(reply, Exception):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
