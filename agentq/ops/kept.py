"""A server that this process started and starts again when it has ended, as `Children` are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from agentq.errors import ProcessFailed
from agentq.ops.children import EARLY, EARLY_DEATHS, how_it_ended


class Server(Protocol):
    """What is kept running; `start` starts one that has died anew, where clients look for it."""

    @property
    def pid(self) -> int | None:
        """Its process id."""

    @property
    def ended(self) -> int | None:
        """Its exit status once it has ended by itself."""

    def start(self) -> str:
        """Start it, or do nothing while it runs."""


class Kept:
    """One server and how often it has died."""

    def __init__(self, *, name: str, server: Server) -> None:
        """Take one that runs; *name* stands in what is said of it."""
        self._name = name
        self._server = server
        self._began = time.monotonic()
        self._early_deaths = 0

    def round(self) -> Iterator[str]:
        """Start it again if it has ended; yield what is to be said of that, as it happens.

        Raises:
            ProcessFailed: it ended early three times in a row.
            AgentQError: it cannot be started.
        """
        if (status := self._server.ended) is None:
            return
        how = how_it_ended(status)
        early = time.monotonic() - self._began < EARLY.total_seconds()
        self._early_deaths = self._early_deaths + 1 if early else 0
        if self._early_deaths >= EARLY_DEATHS:
            raise ProcessFailed(f"{self._name} ended {how} again and again")
        yield f"{self._name} (process {self._server.pid}) ended {how} and is started again"
        where = self._server.start()
        self._began = time.monotonic()
        yield f"again: {self._name}, process {self._server.pid}, {where}"
