"""What workers and server hold: memory, open files, threads, keys; sampled while work goes on.

Compared is what was held at the quieter moments, a tenth from the least: links and what is under way
come and go by a third, and what is never given back raises the least too.

Of the workers only those are looked at that are never killed: growth shows in what lives long. Of
one of ours only the main process: children, in which suspects run, come and go. The server's open
files are links, new with each of its restarts, and as many as the workers of that moment hold.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from agentq.host.process import descendants, rss_bytes
from tests.fault.scenarios.ground import now
from tests.support.redis_server import Server
from tests.support.worker_process import WorkerProcess


@dataclass(frozen=True, slots=True)
class Level:
    """How much of something was held after warming up, and at the end."""

    what: str
    warm: float
    end: float

    @property
    def growth(self) -> float:
        """Return by which share it has grown."""
        return self.end / self.warm - 1 if self.warm else 0.0


class Gauges:
    """Samples from `start` to `stop`."""

    def __init__(
        self,
        *,
        server: Server,
        workers: dict[str, WorkerProcess],
        client: redis.Redis,
        every: float,
    ) -> None:
        """Keep the parts; *client* is not used by anybody else, and has a time limit."""
        self._server = server
        self._workers = workers
        self._client = client
        self._every = every
        self._samples: list[tuple[float, str, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gauges")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Safe twice."""
        self._stop.set()
        self._thread.join()

    def round(self) -> None:
        """Take one sample of everything that can be read now."""
        at = now()
        with suppress(redis.ConnectionError, redis.TimeoutError):
            self._samples.append((at, "keys", self._client.dbsize()))
        if pid := self._server.embedded.pid:
            self._read(at, "server", pid)
        for kind, worker in self._workers.items():
            children = descendants(worker.pid) if kind == "prefork" else ()
            self._read(at, kind, worker.pid, *children)

    def _read(self, at: float, who: str, *pids: int) -> None:
        with suppress(ProcessLookupError, FileNotFoundError):  # one is being replaced
            self._samples += [
                (at, f"{who}: RSS, MB", sum(map(rss_bytes, pids)) / 1e6),
                (at, f"{who}: threads", _count(pids, "task")),
            ]
            if who != "server":
                self._samples.append((at, f"{who}: open files", _count(pids, "fd")))

    def levels(self, warm: float, end: float, window: float) -> list[Level]:
        """Compare the *window* seconds before *warm* with those before *end*."""
        found = []
        for name in dict.fromkeys(name for _, name, _ in self._samples):
            first, last = self._within(name, warm, window), self._within(name, end, window)
            if first and last:  # a server that stood still all the time has told no keys
                found.append(Level(name, _quiet(first), _quiet(last)))
        return found

    def _within(self, name: str, until: float, window: float) -> list[float]:
        return [
            value for at, of, value in self._samples if of == name and until - window <= at <= until
        ]

    def keep(self, file: Path) -> None:
        """Write the samples down, one a line: when, of what, how much."""
        lines = (f"{at:.1f}\t{what}\t{value:g}\n" for at, what, value in self._samples)
        file.write_text("".join(lines))

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.round()


def _quiet(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 10]


def _count(pids: Iterable[int], what: str) -> int:
    return sum(len(list(Path(f"/proc/{pid}/{what}").iterdir())) for pid in pids)
