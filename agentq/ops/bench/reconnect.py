"""A fleet that lost its broker: when each worker is back, counted from the server's start.

All lose their connections at the same moment; were they to come back at the same one, a server that
has just loaded its data would meet them all at once.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from agentq.errors import BenchFailed
from agentq.ops.bench.figures import Figure
from agentq.ops.bench.fleet import Fleet
from agentq.ops.bench.server import private_server
from agentq.store.address import parse

WORKERS = 200
DOWN_S = 4.0
BACK_S = 5.0
SHARE = 0.25
"""Of the fleet, what may come back within a tenth of a second."""

_LIMIT_S = 30.0


def measure_reconnect(
    *, workers: int = WORKERS, down_s: float = DOWN_S, server: Path | None = None
) -> list[Figure]:
    """Stop a private server for *down_s* under so many idle workers; takes about ten seconds.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
        BenchFailed: not all came back.
    """
    with (
        private_server(server) as embedded,
        Fleet(address=parse(embedded.url), count=workers) as fleet,
    ):
        embedded.stop()
        time.sleep(down_s)  # the fault: they try again meanwhile
        for worker in fleet.workers:
            worker.store.answered_at = None
        embedded.start()
        times = _back_s(fleet, time.monotonic())
    most = Counter(int(one * 10) for one in times).most_common(1)[0][1]
    return [
        Figure(f"the first of {workers} workers is back after", times[0], "s"),
        Figure("half of them", times[len(times) // 2], "s"),
        Figure("the last", times[-1], "s", BACK_S),
        Figure("most of them within 100 ms", most / workers * 100, "%", SHARE * 100),
    ]


def _back_s(fleet: Fleet, began: float) -> list[float]:
    end = time.monotonic() + _LIMIT_S
    while True:
        times = [one.store.answered_at for one in fleet.workers]
        known = [max(0.0, one - began) for one in times if one is not None]
        if len(known) == len(times):
            return sorted(known)
        if time.monotonic() > end:
            raise BenchFailed(f"{len(times) - len(known)} of {len(times)} workers are not back")
        time.sleep(0.05)
