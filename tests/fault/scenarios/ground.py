"""Where a scenario takes place: a server of its own, an app in a cell, workers, and the counting.

What is counted, from the ledger:

    lost      pieces of work without an end, or without the stored result that their caller reads
    doubled   beginnings of a piece of work beyond the first, less those that a fault explains: it
              had begun in a process that was killed, stopped or hung, and Redis still had it in
              that process' hands (`hit`). A piece that had been completed is never explained.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from celery import chord

from agentq.runs.handle import RunHandle
from agentq.store.embedded import AppendFsync
from agentq.store.keys import GROUP, RESULT_PREFIX, Keys
from tests.support.ledger import Ledger
from tests.support.redis_server import Server, private_server
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

APP = "tests.support.apps.matrix"

KINDS = {"ours": BOTH_POOLS, "prefork": (*BOTH_POOLS, "-P", "prefork")}
"""Kinds of workers, and the command line that chooses each."""

SLOTS = {"ours": 8, "prefork": 2}
"""What one of them runs at once."""

_ENDING_S = 90.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the ledger."""

    what: str
    label: str
    task: str
    pid: int
    at: float


class Ground:
    """What a scenario works on."""

    def __init__(self, *, server: Server, cell: str, running: Running) -> None:
        self.server = server
        self.redis = server.client
        self.running = running
        self.app: Any = running.app
        self.keys = Keys(cell)
        self.cell = cell
        self._tasks: list[tuple[str, str]] = []
        """Label and task id of each."""
        self._runs: list[tuple[RunHandle, str, int]] = []
        self._explained: Counter[str] = Counter()
        self._workers: list[WorkerProcess] = []

    # -- what runs ----------------------------------------------------------------------------------

    def worker(
        self, kind: str = "ours", *, slots: int = 0, inside: tuple[str, ...] = ()
    ) -> WorkerProcess:
        """Start a worker; it ends with the scenario.

        *slots*: what runs at once, 0 the usual; *inside*: on another `Machine`.
        """
        options = (*KINDS[kind], "-c", str(slots or SLOTS[kind]))
        name = f"{kind}{len(self._workers)}"
        worker = self.running.worker(name, options=options, inside=inside)
        self._workers.append(worker)
        return worker

    def send(self, count: int, seconds: float = 0.05, **options: Any) -> list[str]:
        """Enqueue *count* tasks; return their labels, which are their ids."""
        labels = [uuid4().hex[:12] for _ in range(count)]
        for label in labels:
            self.app.work.apply_async((label, seconds), task_id=label, **options)
            self.expect(label, label)
        return labels

    def expect(self, label: str, task_id: str) -> None:
        """Count a task that the scenario has enqueued itself."""
        self._tasks.append((label, task_id))

    def chord(self, width: int, seconds: float = 0.05, last: str = "") -> str:
        """Enqueue a chord; return its body's label. *last* ends the label of one header task."""
        label = uuid4().hex[:12]
        labels = [f"{label}.{number}" for number in range(width)]
        labels[-1] += last
        header = [self.app.work.s(one, seconds).set(task_id=one) for one in labels]
        chord(header)(self.app.total.s(f"{label}.body").set(task_id=f"{label}.body"))
        for one in (*labels, f"{label}.body"):
            self.expect(one, one)
        return f"{label}.body"

    def submit(self, width: int, seconds: float = 0.05, key: str | None = None) -> RunHandle:
        """Start a run that fans out; each member takes *seconds*."""
        prefix = key or uuid4().hex[:12]
        handle: RunHandle = self.app.fan.submit([prefix, width, seconds], key=prefix)
        if all(handle.id != known.id for known, _, _ in self._runs):
            self._runs.append((handle, prefix, width))
        return handle

    def answers(self, within: float = 30.0) -> float:
        """Return how many seconds from now on it takes until something new is begun."""
        began = now()
        [label] = self.send(1, 0.0)
        return self.again_after(began, {label}, within)

    # -- what is seen -------------------------------------------------------------------------------

    def lines(self, what: str = "") -> list[Line]:
        """Return the ledger, in the order of its being written."""
        found = [line.split() for line in self.running.ledger.lines(what)]
        return [Line(x[0], x[1], x[2], int(x[3]), float(x[4])) for x in found]

    def until(self, what: str, count: int, within: float = 30.0) -> None:
        """Wait until *count* lines of that kind are there."""
        ledger = self.running.ledger
        wait_until(
            lambda: len(ledger.lines(f"{what} ")) >= count,
            lambda: f"{count} times {what}: {len(ledger.lines(f'{what} '))}",
            within,
        )

    def first_after(self, moment: float, what: str = "", within: float = 30.0) -> float:
        """Wait for the first line noted after *moment*; return how many seconds after."""

        def later() -> list[float]:
            return [line.at for line in self.lines(what) if line.at > moment]

        return min(wait_until(later, f"a line {what!r} after the fault", within)) - moment

    def again_after(self, moment: float, labels: set[str], within: float = 40.0) -> float:
        """Wait until each of *labels* has begun after *moment*, and ended; return the seconds to
        the last beginning.

        Ended too, since what dies three times under a stock pool is dead, and rightly.
        """

        def since(what: str) -> dict[str, float]:
            found = {x.label: x.at for x in reversed(self.lines(what)) if x.at > moment}
            return {label: found[label] for label in labels if label in found}

        wait_until(lambda: since("end ").keys() == labels, lambda: f"{labels} again", within)
        return max(since("begin ").values(), default=moment) - moment

    def in_hands(self, worker: WorkerProcess) -> set[str]:
        """Return the ids of the tasks that Redis has in the hands of a worker."""
        name = worker.options[1]
        return {
            self._id_at(stream, entry["message_id"])
            for stream in self.server.streams(self.cell)
            for entry in self.redis.xpending_range(stream, GROUP, "-", "+", 10_000)
            if (who := entry["consumer"].decode()).startswith(f"{name}#")
            or f":{worker.pid}:" in who
        }

    def _id_at(self, stream: str, entry: bytes) -> str:
        found = self.redis.xrange(stream, entry, entry)
        return found[0][1][b"i"].decode() if found else ""  # it has just ended

    def hit(self, worker: WorkerProcess, pid: int | None = None) -> set[str]:
        """Say that a process has been killed or stopped; return the labels of what it was at.

        Of what had ended there the completion may be on its way, or not: it may begin again.
        *pid*: a child of the worker, else all of it.
        """
        held = self.in_hands(worker)
        begun: Counter[str] = Counter()
        labels = set()
        for line in self.lines("begin "):
            begun[line.task] += 1
            if line.task in held and pid in (None, line.pid):
                labels.add((line.label, line.task))
        found = {(label, x) for label, x in labels if begun[x] > self._explained[x]}
        self._explained.update(x for _, x in found)
        ended = {line.label for line in self.lines("end ")}
        return {label for label, _ in found} - ended

    def explain(self, task_id: str) -> None:
        """Say that a task was delivered once more than it was enqueued."""
        self._explained[task_id] += 1

    def bodies(self) -> list[str]:
        """Return the label of each beginning of a chord's or a run's body."""
        return [x.label for x in self.lines("begin ") if x.label.endswith(".body")]

    # -- the end ------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """Return the keys of what is not ended yet, and those that lack a time to live."""
        return self.server.left(self.cell)

    def ended(self, workers: int, within: float = _ENDING_S) -> tuple[int, int]:
        """Wait until all is done, hold the end rule; return how much was lost and doubled.

        workers: how many live, whose leases are the only ones that may be left.
        """
        wait_until(lambda: not self.waiting(), lambda: f"done: {self.waiting()}", within)
        lost, doubled = self._lost(), self._doubled()
        if lost or doubled:
            self._tell(lost, doubled)
        self.at_rest(workers)
        return len(lost), len(doubled)

    def at_rest(self, workers: int) -> None:
        """Hold the end rule, once nothing waits: nothing is left but leases of the living."""
        wait_until(
            lambda: self.redis.zcard(self.keys.workers()) == workers,
            lambda: (
                f"{workers} leases: {self.redis.zrange(self.keys.workers(), 0, -1)}{self._ended()}"
            ),
            30,
        )
        assert self._open_joins() == [], "fan-ins that still wait"

    def _ended(self) -> str:
        """Return the last words of the workers that do not live, for whoever reads a failure."""
        return "".join(f"\n{w.log()[-2000:]}" for w in self._workers if not w.alive())

    def _lost(self) -> list[str]:
        ended = {line.label for line in self.lines("end ")}
        lost = [label for label, x in self._tasks if label not in ended or self.stored(x) is None]
        for handle, prefix, width in self._runs:
            found = handle.result(timeout=1) if handle.status().state == "done" else []
            lost += sorted({f"{prefix}.{number}" for number in range(width)} - set(found))
            lost += [x for x in (f"{prefix}.plan", f"{prefix}.body") if x not in ended]
        return lost

    def stored(self, task_id: str) -> Any:
        """Return what a task returned, None where that is not stored."""
        document = self.redis.get(f"{self.keys.prefix}{RESULT_PREFIX}{task_id}")
        found = orjson.loads(document) if document else {}
        return found["result"] if found.get("status") == "SUCCESS" else None

    def _doubled(self) -> list[str]:
        begun = self.lines("begin ")
        explained: Counter[str] = Counter()
        for label, task in {(line.label, line.task) for line in begun}:
            explained[label] += self._explained[task]
        times = Counter(line.label for line in begun)
        return list((times - explained - Counter(list(times))).elements())

    def _tell(self, lost: list[str], doubled: list[str]) -> None:
        """Print what the ledger and the dead letters have of what went wrong."""
        letters = [fields for _, fields in self.redis.xrange(self.keys.dead())]
        print(f"lost {lost}; doubled {doubled}; dead letters {letters}")
        wrong = {*lost, *doubled}
        for line in self.lines():
            if line.label in wrong:
                print(line)
        for handle, prefix, _ in self._runs:
            if wrong & {f"{prefix}.plan", f"{prefix}.body"}:
                print(handle.status(), list(handle.events())[-3:])

    def _open_joins(self) -> list[str]:
        match = self.keys.prefix.replace("{", "[{]") + "join:*"
        return [
            key.decode()
            for key in self.redis.scan_iter(match=match, count=1000)
            if key.count(b":") == 2 and self.redis.hget(key, "state") == b"open"
        ]


@contextmanager
def ground(
    *, appendfsync: AppendFsync = "always", lease: float = 1.0, **settings: str
) -> Iterator[Ground]:
    """Set a server and the app up; *settings* as variables without ``AGENTQ_``."""
    with private_server(appendfsync=appendfsync) as server, on_server(
        server, lease=lease, **settings
    ) as found:  # fmt: skip
        yield found


@contextmanager
def on_server(
    server: Server,
    *,
    url: str | None = None,
    cell: str | None = None,
    lease: float = 1.0,
    **settings: str,
) -> Iterator[Ground]:
    """Set the app up on *server*, reached by *url* where that is another way."""
    cell = cell or uuid4().hex[:12]
    chosen = {"WORKER__LEASE": f"{lease:g}s", "WORKER__POLL": "500ms"} | settings
    with tempfile.TemporaryDirectory(prefix="aq-ground-") as folder:
        ledger = Ledger(Path(folder) / "ledger")
        address = url or server.url
        address += f"{'&' if '?' in address else '?'}cell={cell}"
        with running(APP, address, ledger, **chosen) as found:
            here = Ground(server=server, cell=cell, running=found)
            try:
                yield here
            finally:
                found.app.app.backend.result_consumer.stop()
                found.app.app.backend.client.close()
                found.app.app.close()
                found.app.aq.store.close()


def now() -> float:
    """Return the time that lines of the ledger bear."""
    return time.monotonic()
