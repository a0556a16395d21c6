"""Reads what a message refers to, when its step starts: a fan-in's outcomes, a large argument."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agentq.broker import joins, serializer
from agentq.errors import BlobMissing

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ
    from agentq.store.multiplexer import Multiplexer
    from agentq.worker.delivery import Delivery


class JoinReader:
    """Replaces a reference among a delivery's arguments by the outcomes."""

    def __init__(self, *, app: AgentQ, cell: Multiplexer) -> None:
        """Keep the parts."""
        self._app = app
        self._cell = cell

    async def resolved(self, delivery: Delivery, args: list[Any]) -> list[Any]:
        """Return *args* with outcomes (a flow's step) or results (an ordinary chord's body).

        Raises:
            ChordError: a header task of an ordinary chord failed.
            BlobMissing: the argument is lost.
            BrokerUnavailable, BlobsUnavailable: no answer in time.
        """
        ours = delivery.envelope.ours
        if reference := ours.get(joins.BLOB):
            return [serializer.loads(await self._app.blobs.aget(reference)), *args[1:]]
        join_id = ours.get("join")
        if not join_id:
            return args
        if "flow" not in ours:
            return await self._all(delivery, args)
        found = joins.referenced(args, join_id)
        if found is None:
            return args
        place, _ = found
        key = self._cell.store.keys.outcomes(join_id)
        outcomes = joins.read_outcomes(await self._cell.call(("HGETALL", key)))
        if large := outcomes.in_blobs():
            await asyncio.gather(*map(self._read, large))
        return [*args[:place], outcomes, *args[place + 1 :]]

    async def _read(self, outcome: dict[str, Any]) -> None:
        try:
            joins.fill(outcome, await self._app.blobs.aget(outcome[joins.BLOB]))
        except BlobMissing as error:
            joins.fill(outcome, error)

    async def _all(self, delivery: Delivery, args: list[Any]) -> list[Any]:
        """Resolve an ordinary chord as the stock pools do, in a thread."""
        loop = asyncio.get_running_loop()
        resolve = self._app.resolve_joins
        return list(await loop.run_in_executor(None, resolve, args, delivery.envelope.ours))
