"""What a piece of work cost: CPU seconds of workers and server, Redis commands and round trips."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from agentq.host.process import cpu_seconds, usage
from agentq.store.address import connect, parse

_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts since some start; the difference of two is what happened between them.

    Attributes:
        process_s: CPU seconds of the process that reads, all threads.
        workers_s: CPU seconds of the workers' trees.
        server_s: CPU seconds of the server.
        commands: Redis commands, those inside functions and scripts included.
        round_trips: reads from sockets; a pipeline that arrives at once is one.
    """

    process_s: float
    workers_s: float
    server_s: float
    commands: int
    round_trips: int

    def __sub__(self, earlier: Cost) -> Cost:
        """Return what was spent since *earlier*."""
        return Cost(
            self.process_s - earlier.process_s,
            self.workers_s - earlier.workers_s,
            self.server_s - earlier.server_s,
            self.commands - earlier.commands,
            self.round_trips - earlier.round_trips,
        )


class Gauge:
    """Reads the costs of one server and of the process trees that work on it."""

    def __init__(self, *, url: str, server: int, workers: tuple[int, ...] = ()) -> None:
        """Name the server by URL and process id, and the workers by their roots' ids."""
        self._url = url
        self._server = server
        self._workers = workers

    def read(self) -> Cost:
        """Return the counts now; reading costs one command."""
        stats = self._client.info("stats")
        return Cost(
            time.process_time(),
            sum(usage(worker).cpu_seconds for worker in self._workers),
            cpu_seconds(self._server),
            int(stats["total_commands_processed"]),
            int(stats["total_reads_processed"]),
        )

    @cached_property
    def _client(self) -> Any:
        return connect(parse(self._url), timeout=_TIMEOUT)
