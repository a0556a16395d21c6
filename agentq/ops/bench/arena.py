"""One test's surroundings: a fresh server, a ledger, workers and producers, all gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Self

from agentq.errors import BenchFailed
from agentq.ops.bench.gauge import Gauge
from agentq.ops.bench.ledger import PATH_VARIABLE, Ledger, Mark, Tally
from agentq.ops.bench.processes import Memory, end_tree, memory
from agentq.ops.bench.producer import Order
from agentq.ops.bench.rows import Row, Test
from agentq.ops.bench.server import private_server
from agentq.ops.bench.systems import System

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - made private by mkdtemp
_PRODUCER_TIMEOUT_S = 120.0
_POLL_S = 0.005
_LOG_LINES = 15
_READY = "; open files:"
"""In the line of a worker that is ready."""
# What the caller's shell says about agentq or Celery must not reach the measured processes.
_FOREIGN = ("AGENTQ_", "CELERY_", "FLOWER_")


class Worker:
    """A worker's process tree under measurement."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Watch *process* and its descendants; *log* is what it writes."""
        self.pid = process.pid
        self._process = process
        self._log = log

    def memory(self) -> Memory:
        """Return the memory of the whole tree."""
        return memory(self.pid)

    def await_ready(self, *, timeout_s: float) -> None:
        """Return when an agentq worker has said that it takes work.

        Raises:
            BenchFailed: it did not within *timeout_s*, or it ended.
        """
        end = time.monotonic() + timeout_s
        while _READY not in self._log.read_text(encoding="utf-8", errors="replace"):
            self.require_alive()
            if time.monotonic() > end:
                raise BenchFailed(f"the worker was not ready within {timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def require_alive(self) -> None:
        """Raise `BenchFailed` if the worker has ended by itself."""
        if (status := self._process.poll()) is not None:
            raise BenchFailed(f"the worker ended with status {status}")


class Arena:
    """A server of its own for one test of one system; use as a context manager.

    Both systems get the same server program with the same settings: append-only file, fsync every
    second, a unix socket.
    """

    def __init__(self, *, system: System, test: Test, program: Path | None = None) -> None:
        """Take the parts; nothing runs before `with`."""
        self.system = system
        self.test = test
        self._program = program
        self._stack = contextlib.ExitStack()
        self._started = 0

    def __enter__(self) -> Self:
        """Start the server and make an empty ledger."""
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder := Path(tempfile.mkdtemp(prefix="aqb-")))
            shared = tempfile.mkdtemp(
                prefix="agentq-bench-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
            )
            stack.callback(shutil.rmtree, shared)
            self._folder = folder
            self._ledger_path = Path(shared) / "ledger"
            self.ledger = Ledger.create(self._ledger_path)
            self._server = stack.enter_context(private_server(self._program))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server, remove every file."""
        self._stack.close()

    @property
    def url(self) -> str:
        """Return the server's address."""
        return self._server.url

    def gauge(self, worker: Worker) -> Gauge:
        """Return the gauge of the server and *worker*."""
        return Gauge(url=self._server.url, server=self._server_pid, workers=(worker.pid,))

    def row(self, measure: str, unit: str, value: float, *, n: int) -> Row:
        """Return a row of this test and system."""
        return Row.figure(self.test, self.system.name, measure, unit, value, n)

    @contextlib.contextmanager
    def worker(
        self, command: list[str] | None = None, environment: Mapping[str, str] | None = None
    ) -> Iterator[Worker]:
        """Start *command*, by default the system's worker; end its tree at the end.

        *environment* is added to what the system's processes get.

        A `BenchFailed` from inside leaves with the last lines of the worker's log.
        """
        self._started += 1
        log = self._folder / f"worker-{self._started}.log"
        command = command or self.system.worker(self.test)
        with (
            log.open("wb") as output,
            self._started_as(command, output, subprocess.STDOUT, environment) as process,
        ):
            try:
                yield Worker(process, log)
            except BenchFailed as failure:
                raise BenchFailed(f"{failure}\nworker log:\n{_tail(log)}") from failure

    def produce(self, job: str, *, worker: Worker | None = None, **fields: object) -> list[Row]:
        """Run one producing process to its end and return its rows.

        *fields* are those of `Order`.

        Raises:
            BenchFailed: if it fails or takes longer than two minutes.
        """
        order = Order(
            system=self.system.name,
            test=self.test,
            job=job,
            url=self._server.url,
            server=self._server_pid,
            workers=(worker.pid,) if worker else (),
            **fields,  # type: ignore[arg-type]  # checked by the dataclass' own constructor
        )
        command = [sys.executable, "-m", "agentq.ops.bench.producer", json.dumps(asdict(order))]
        log = self._folder / f"{job}.log"
        with (
            log.open("wb") as errors,
            self._started_as(command, subprocess.PIPE, errors) as process,
        ):
            try:
                output, _ = process.communicate(timeout=_PRODUCER_TIMEOUT_S)
            except subprocess.TimeoutExpired as expired:
                raise BenchFailed(
                    f"the producer of {job!r} took longer than {_PRODUCER_TIMEOUT_S:.0f} s"
                ) from expired
        if process.returncode:
            raise BenchFailed(f"the producer of {job!r} failed:\n{_tail(log)}")
        return [Row.from_json(row) for row in json.loads(output)]

    def await_steps(
        self, count: int, *, worker: Worker, timeout_s: float, mark: Mark = Mark.STEP
    ) -> Tally:
        """Return the tally once *count* steps of *mark* ran.

        Raises:
            BenchFailed: if they did not within *timeout_s* or the worker ended.
        """
        end = time.monotonic() + timeout_s
        while (tally := self.ledger.read(mark)).count < count:
            worker.require_alive()
            if time.monotonic() > end:
                raise BenchFailed(
                    f"{tally.count:,} of {count:,} steps ran within {timeout_s:.0f} s"
                )
            time.sleep(_POLL_S)
        return tally

    @contextlib.contextmanager
    def _started_as(
        self,
        command: list[str],
        output: int | IO[bytes],
        errors: int | IO[bytes],
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run *command*; end its tree at the end, however that comes."""
        with contextlib.ExitStack() as stack:
            with _signals_wait():
                process = subprocess.Popen(  # noqa: S603 -- our own modules, under this interpreter
                    command,
                    env={**self._environment(), **(environment or {})},
                    cwd=self._folder,  # no config/ of the caller's
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
                stack.callback(process.wait)
                stack.callback(end_tree, process.pid)
            yield process

    @property
    def _server_pid(self) -> int:
        if (pid := self._server.pid) is None:
            raise BenchFailed("the benchmark's server is gone")
        return pid

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        found = self.system.environment(
            url=self._server.url, socket=self._server.socket_path, test=self.test
        )
        return {**kept, **found, PATH_VARIABLE: str(self._ledger_path)}


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Let what would unwind the stack wait: a process would run on that nobody knows of yet."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
