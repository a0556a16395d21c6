"""Flower as an application: its pages and ours, workers asked again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flower.app import Flower, rewrite_handler
from tornado.ioloop import PeriodicCallback

from agentq.broker.app import App
from agentq.dashboard.pages import PAGES
from agentq.dashboard.templating import Overlay

REFRESH_MS = 10_000
"""How often workers are asked what they are; Flower by itself asks once, at its start."""


class Dashboard(Flower):  # type: ignore[misc]
    """`start` blocks until `stop`."""

    def __init__(self, *, aq: App, options: Any, settings: dict[str, Any]) -> None:
        """Take Tornado's options and *settings* as `flower.command` prepares them."""
        overlay = Overlay(flower=Path(settings["template_path"]))
        super().__init__(options=options, capp=aq.celery, template_loader=overlay, **settings)
        prefix = options.url_prefix
        ours = [rewrite_handler(page, prefix) for page in PAGES] if prefix else list(PAGES)
        self.add_handlers(".*", ours)  # these are matched before Flower's own
        self._refresh = PeriodicCallback(self._ask, REFRESH_MS)

    def start(self) -> None:
        """Serve until `stop` is called."""
        self._refresh.start()
        super().start()

    def stop(self) -> None:
        """End; safe twice."""
        self._refresh.stop()
        super().stop()

    async def _ask(self) -> None:
        await self.update_workers()
