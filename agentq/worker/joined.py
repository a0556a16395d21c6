"""Reads what a fan-in left for its body, when the body starts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agentq.broker import joins

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
            BrokerUnavailable: no answer in time.
        """
        ours = delivery.envelope.ours
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
        return [*args[:place], outcomes, *args[place + 1 :]]

    async def _all(self, delivery: Delivery, args: list[Any]) -> list[Any]:
        """Resolve an ordinary chord as the stock pools do, in a thread."""
        loop = asyncio.get_running_loop()
        resolve = self._app.resolve_joins
        return list(await loop.run_in_executor(None, resolve, args, delivery.envelope.ours))
