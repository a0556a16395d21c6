"""A cell in which processes die at fail-points, one after the other, and a worker that goes on.

That worker lives through all acts: stopped (SIGSTOP) until the process of the act has died, so that
it takes nothing from it, and long leased, so that it is there when it is let go on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self
from uuid import uuid4

from agentq.runs.handle import RunHandle
from agentq.settings.sources import CRASH_VARIABLE
from tests.support.apps import points
from tests.support.ledger import VARIABLE, Ledger
from tests.support.redis_server import Server
from tests.support.running import BOTH_POOLS
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT, WorkerProcess

APP = "tests.support.apps.points"
WAIT_S = 40
"""For whatever must happen: generous, since what counts is what happened."""


class Play:
    """Ends, on the way out, whatever was started in it."""

    def __init__(self, *, server: Server, folder: Path, dying: Sequence[str] = ()) -> None:
        """Begin; *dying*: options of the workers that die."""
        self.server = server
        self.folder = folder
        self._dying = dying
        self.cell = uuid4().hex[:12]
        self.ledger = Ledger(folder / self.cell)
        url = f"{server.url}?cell={self.cell}"
        self.variables = {
            "AGENTQ_ENV": "test",
            "AGENTQ_APP": f"{APP}:aq",
            "AGENTQ_BROKER__URL": url,
            "AGENTQ_WORKER__LEASE": "600ms",
            "AGENTQ_WORKER__HANG_TIMEOUT": "30s",
            VARIABLE: str(self.ledger.path),
        }
        self.aq = points.declared(url)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._other = self.worker("other", AGENTQ_WORKER__LEASE="60s", **{points.NEW: "1"})
        self._other.send(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.aq.celery.close()
        self.aq.store.close()

    # -- who works ----------------------------------------------------------------------------------

    def worker(self, name: str, *options: str, crash: str = "", **variables: str) -> WorkerProcess:
        """Start a worker; return when it is ready, or at once where it is to die at *crash*."""
        env = self._environment(crash, variables)
        options = ("-n", f"{name}@test", *BOTH_POOLS, *options)
        worker = WorkerProcess(f"{APP}:app", options=options, env=env)
        self._stack.callback(worker.close)
        worker.start(wait=not crash)
        return worker

    def dies(self, worker: WorkerProcess) -> None:
        """Wait until *worker* has been killed, by its fail-point."""
        assert worker.wait_ended(WAIT_S) == -signal.SIGKILL, worker.log()

    def dying(self, crash: str, *options: str, **variables: str) -> WorkerProcess:
        """Start a worker that is to die at *crash*."""
        return self.worker("dying", *self._dying, *options, crash=crash, **variables)

    def worker_dies(self, crash: str, **variables: str) -> None:
        """Start a worker and wait until it has died."""
        self.dies(self.dying(crash, **variables))

    def go_on(self) -> None:
        """Let the other worker go on."""
        self._other.send(signal.SIGCONT)

    def command(self, *words: str, crash: str = "") -> str:
        """Run `agentq` with these words in a process of its own; return what it prints."""
        return self._process(["-m", "agentq", *words], crash)

    def producer(self, call: str, *, crash: str = "") -> str:
        """Run one call of the app's module in a process of its own."""
        return self._process(["-c", f"from {APP} import *; {call}"], crash)

    def _process(self, words: list[str], crash: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT, env=os.environ | self._environment(crash, {}),
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == (-signal.SIGKILL if crash else 0), done.stdout + done.stderr
        return done.stdout

    def _environment(self, crash: str, variables: dict[str, str]) -> dict[str, str]:
        return self.variables | variables | ({CRASH_VARIABLE: crash} if crash else {})

    # -- what is looked at --------------------------------------------------------------------------

    def submit(self, flow: str, argument: Any = 0) -> RunHandle:
        """Submit a run."""
        return self.aq.get_flow(flow).submit(argument)

    def until_noted(self, line: str) -> None:
        """Wait for a line in the ledger."""
        ledger = self.ledger
        wait_until(lambda: ledger.count(line), lambda: f"{line!r} in {ledger.counts()}", WAIT_S)

    def ran(self, word: str) -> dict[str, int]:
        """Return how often each step ran that is noted by *word*, once none waits any more."""
        self._until_empty()
        counts = self.ledger.counts(f"{word} ")
        return {line.removeprefix(f"{word} "): times for line, times in counts.items()}

    def check_ended(self, run: RunHandle, *, steps: int = 1, result: Any = 0) -> None:
        """Check that *run* ended once, with *result*, and each of its *steps* once."""
        assert run.result(timeout=WAIT_S) == result
        events = run.history()
        assert [event.kind for event in events].count("end") == 1
        done = [event.data["task"] for event in events if event.kind == "step"]
        assert len(done) == len(set(done)) == steps

    def end_act(self) -> None:
        """Check that nothing is left behind; stop the other worker."""
        self._until_empty()
        self._other.send(signal.SIGSTOP)
        self.ledger.clear()

    def check_leases(self) -> None:
        """Check that the dead hold no lease any more."""
        self.go_on()
        store = self.aq.store
        count = partial(store.command, "ZCARD", store.keys.workers())
        wait_until(lambda: count() == 1, lambda: f"one lease, not {count()}", WAIT_S)

    def _until_empty(self) -> None:
        left = partial(self.server.left, self.cell)
        wait_until(lambda: not left(), lambda: f"an empty cell; in it: {left()}", WAIT_S)


Scenario = Callable[[Play, str], None]
"""Lets a process die at a point, lets others go on, and checks what became of the work."""


class Plays:
    """Plays on several servers, each server's for one thread at a time."""

    def __init__(
        self, *, servers: Sequence[Server], folder: Path, dying: Sequence[str] = ()
    ) -> None:
        """Begin; *dying*: options of the workers that die."""
        self._folder = folder
        self._dying = dying
        self._servers: SimpleQueue[Server] = SimpleQueue()
        for server in servers:
            self._servers.put(server)
        self._kept: dict[Server, Play] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            for play in self._kept.values():
                play.check_leases()

    def act(self, scenario: Scenario, point: str) -> None:
        """Play one scenario."""
        with self.one() as play:
            scenario(play, point)

    @contextmanager
    def one(self) -> Iterator[Play]:
        """Give a play for one act; after one that failed it is not given again."""
        server = self._servers.get()
        try:
            play = self._kept.pop(server, None)
            if play is None:
                new = Play(server=server, folder=self._folder, dying=self._dying)
                play = self._stack.enter_context(new)
            yield play
            play.end_act()
            self._kept[server] = play
        finally:
            self._servers.put(server)
