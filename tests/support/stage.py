"""The app of ordinary Celery tasks in a cell of its own, with a worker of one kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

APP = "tests.support.apps.canvas"

OPTIONS = {"prefork": (*BOTH_POOLS, "-P", "prefork", "-c", "2"), "agentq": BOTH_POOLS}
"""Kinds of workers, and the command line that chooses each."""


class Stage:
    """What a test works on."""

    def __init__(self, *, server: Server, cell: str, running: Running) -> None:
        self.server = server
        self.client = server.client
        self.cell = cell
        self.ledger = running.ledger
        self.variables = running.variables
        self.app: Any = running.app
        self._running = running

    def worker(self, kind: str, name: str = "w") -> WorkerProcess:
        """Start a worker that ends with the test."""
        return self._running.worker(name, options=OPTIONS[kind])

    def key(self, rest: str) -> str:
        """Return a key of this cell."""
        return f"{{aq:{self.cell}}}:{rest}"

    def dead_letter(self, task_id: str) -> dict[bytes, bytes]:
        """Return the one dead letter of a task, empty while there is none."""
        letters = [fields for _, fields in self.client.xrange(self.key("dead"))]
        found = [fields for fields in letters if fields[b"i"].decode() == task_id]
        return found[0] if len(found) == 1 else {}

    def check_clean(self) -> None:
        """Fail where a message is left in a queue, or a key without a time to live."""
        left = self.server.streams
        wait_until(lambda: not left(self.cell), lambda: f"queues empty: {left(self.cell)}", 10)
        assert self.server.keys_left(self.cell) == []


@contextmanager
def on_stage(server: Server, ledger: Ledger, *, worker: str | None = None) -> Iterator[Stage]:
    """Set the app up, with a worker of kind *worker* if there is to be one."""
    cell = uuid4().hex[:12]
    with running(APP, f"{server.url}?cell={cell}", ledger, WORKER__LEASE="3s") as found:
        stage = Stage(server=server, cell=cell, running=found)
        if worker:
            stage.worker(worker)
        try:
            yield stage
        finally:
            found.app.app.backend.result_consumer.stop()
            found.app.app.backend.client.close()
            found.app.app.close()
            found.app.aq.store.close()
