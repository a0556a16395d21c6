"""Our pages, and Flower's where it knows only `redis://` and `amqp://`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from flower.api.tasks import GetQueueLengths
from flower.views import BaseHandler
from flower.views.monitor import Metrics
from tornado import web
from tornado.web import url

from agentq.clock import format_duration
from agentq.dashboard.cell import Cell, read_cell
from agentq.errors import BrokerUnavailable
from agentq.ops.metrics import page
from agentq.ops.status import Queue


class CellHandler(BaseHandler):  # type: ignore[misc]
    """A handler that asks the cell."""

    async def cell(self) -> Cell:
        """Read the cell in a thread, so that Flower's loop does not wait for the broker.

        Raises:
            HTTPError: 503, the broker does not answer.
        """
        try:
            return await asyncio.to_thread(read_cell, self.capp.aq)
        except BrokerUnavailable as error:
            raise web.HTTPError(503, "%s", str(error), reason="Broker unavailable") from error

    def write_error(self, status_code: int, **details: Any) -> None:
        """Say why in one line where the broker is away; else as Flower does."""
        if status_code != 503:  # noqa: PLR2004 -- HTTP's number
            super().write_error(status_code, **details)
            return
        error = details["exc_info"][1]
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{error.__cause__ or error}\n")


class CellPage(CellHandler):
    """`/agentq`: pools, lanes, workers, last runs."""

    @web.authenticated
    async def get(self) -> None:
        """Show it."""
        cell = await self.cell()
        self.render("agentq.html", cell=cell, span=span)


class BrokerPage(CellHandler):
    """`/broker`: Flower's page, a row for each lane and one for what is delayed."""

    @web.authenticated
    async def get(self) -> None:
        """Show it."""
        cell = await self.cell()
        rows = [_row(queue, cell.consumers.get(queue.pool, 0)) for queue in cell.queues]
        rows.append({"name": "delayed (all pools)", "messages": cell.status.delayed})
        self.render("broker.html", broker_url=cell.status.broker.address, queues=rows)


class QueueLengths(CellHandler, GetQueueLengths):  # type: ignore[misc]
    """`/api/queues/length`: a Celery queue is a pool."""

    @web.authenticated
    async def get(self) -> None:
        """Answer as Flower does."""
        lengths = (await self.cell()).lengths()
        queues = [{"name": name, "messages": length} for name, length in lengths.items()]
        self.write({"active_queues": queues})


class GuardedMetrics(Metrics):  # type: ignore[misc]
    """`/metrics`: Flower's and the cell's, behind the login where there is one."""

    @web.authenticated
    async def get(self) -> None:
        """Answer as Flower does, which would show it to anybody."""
        await super().get()
        self.write(await asyncio.to_thread(page, self.capp.aq))


PAGES = (
    url(r"/agentq", CellPage, name="agentq"),
    url(r"/broker", BrokerPage),
    url(r"/api/queues/length", QueueLengths),
    url(r"/metrics", GuardedMetrics),
)


def span(milliseconds: float | None) -> str:
    """Return a duration for people, at most 3 digits of what is below a minute; `-` for None."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:  # noqa: PLR2004 -- a second
        return f"{milliseconds:.0f} ms"
    if milliseconds < 60_000:  # noqa: PLR2004 -- a minute
        return f"{milliseconds / 1000:.1f} s"
    return format_duration(timedelta(seconds=round(milliseconds / 1000)))


def _row(queue: Queue, consumers: int) -> dict[str, Any]:
    return {
        "name": f"{queue.pool}:{queue.lane}",
        "messages": queue.waiting + queue.held,
        "messages_unacknowledged": queue.held,
        "messages_ready": queue.waiting,
        "consumers": consumers,
    }
