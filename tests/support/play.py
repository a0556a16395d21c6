"""A cell in which processes die at fail-points, one after the other, and a worker that goes on.

That worker lives through all acts: stopped (SIGSTOP) until the process of the act has died, so that
it takes nothing from it, and long leased, so that it is there when it is let go on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
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

    def __init__(self, *, server: Server, folder: Path) -> None:
        self.server = server
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

    def worker(self, name: str, *, crash: str = "", **variables: str) -> WorkerProcess:
        """Start a worker; return when it is ready, or at once where it is to die at *crash*."""
        env = self._environment(crash, variables)
        worker = WorkerProcess(f"{APP}:app", options=("-n", f"{name}@test", *BOTH_POOLS), env=env)
        self._stack.callback(worker.close)
        worker.start(wait=not crash)
        return worker

    def dies(self, worker: WorkerProcess) -> None:
        """Wait until *worker* has been killed, by its fail-point."""
        assert worker.wait_ended(WAIT_S) == -signal.SIGKILL, worker.log()

    def worker_dies(self, crash: str, **variables: str) -> None:
        """Start a worker and wait until it has died."""
        self.dies(self.worker("dying", crash=crash, **variables))

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
        store = self.aq.store
        self._until_empty()
        assert store.command("ZCARD", store.keys.delayed()) == 0
        self._other.send(signal.SIGSTOP)
        self.ledger.clear()

    def _until_empty(self) -> None:
        """Wait until no message is left, nor a key without a time to live."""

        def left() -> list[str]:
            return [*self.server.streams(self.cell), *self.server.keys_left(self.cell)]

        wait_until(lambda: not left(), lambda: f"an empty cell; in it: {left()}", WAIT_S)
