"""What the pages show beyond Flower's own: queues whether or not a worker is alive, runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from agentq.broker.app import App
from agentq.ops.status import CellStatus, Queue, every_lane, read_status
from agentq.runs.record import RunStatus, status_of
from agentq.store.client import Store

RUNS_SHOWN = 25

# Not `result`: it may have megabytes, and a page that anybody opens must not show it.
_FIELDS = ("state", "at", "ended", "deadline", "record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One reading of a cell, made in a thread: it waits for the broker."""

    status: CellStatus
    queues: tuple[Queue, ...]
    """Every lane of the settings, and what else was ever put in a queue."""
    consumers: Mapping[str, int]
    """Pool -> workers that hold a lease and work for it."""
    runs: tuple[RunStatus, ...]
    """The newest, newest first."""

    def lengths(self) -> dict[str, int]:
        """Return pool -> messages that wait or are held."""
        totals: Counter[str] = Counter()
        for queue in self.queues:
            totals[queue.pool] += queue.waiting + queue.held
        return dict(totals)


def read_cell(aq: App) -> Cell:
    """Return what is in *aq*'s cell now.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    status = read_status(aq.store)
    return Cell(
        status=status,
        queues=tuple(every_lane(status.queues, aq.settings.pools)),
        consumers=Counter(
            pool for worker in status.workers if worker.state == "up" for pool in worker.pools
        ),
        runs=tuple(_last_runs(aq.store)),
    )


def _last_runs(store: Store) -> list[RunStatus]:
    ids = store.command("ZRANGE", store.keys.runs(), 0, RUNS_SHOWN - 1, "REV")
    names = [run.decode() for run in ids]
    records = store.pipeline([("HMGET", store.keys.run(name), *_FIELDS) for name in names])
    return [
        status_of(name, _present(values))
        for name, values in zip(names, records, strict=True)
        if not isinstance(values, Exception) and values[0] is not None  # its time to live is over
    ]


def _present(values: list[bytes | None]) -> dict[bytes, bytes]:
    pairs = zip(_FIELDS, values, strict=True)
    return {field.encode(): value for field, value in pairs if value is not None}
