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
        if joins.MARK_BYTES not in delivery.body:
            return args
        found = joins.referenced(args)
        if found is None:
            return args
        place, mark = found
        if mark.get(joins.NESTED):
            loop = asyncio.get_running_loop()
            return list(await loop.run_in_executor(None, self._app.resolve_joins, args))
        key = self._cell.store.keys.outcomes(mark[joins.MARK])
        outcomes = joins.read_outcomes(await self._cell.call(("HGETALL", key)))
        value: Any = outcomes if mark.get("flow") else joins.values(outcomes)
        return [*args[:place], value, *args[place + 1 :]]
