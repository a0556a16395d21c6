"""A cell with a replica and Sentinels, as processes on loopback: what a failover needs to be real.

Of the program that the session's server runs (see `redis_server`): every one of them can be a
Sentinel too.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import redis

from agentq.store.embedded import _LAUNCHER
from agentq.store.server_program import find_program
from tests.support.redis_server import PROGRAM
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
SERVICE = "main"
DOWN_AFTER_MS = 500
"""So long a primary does not answer before a Sentinel takes it for dead."""

_SENTINEL = """
port {port}
dir {folder}
sentinel monitor {service} {host} {primary} {quorum}
sentinel down-after-milliseconds {service} {down_after}
sentinel failover-timeout {service} 6000
sentinel parallel-syncs {service} 1
"""


def free_port() -> int:
    """Return a port that nothing listens on at the moment."""
    with socket.socket() as link:
        link.bind((HOST, 0))
        return int(link.getsockname()[1])


class Process:
    """One server program with its arguments; it ends with this process, however that comes."""

    def __init__(
        self,
        arguments: list[str],
        *,
        folder: Path,
        port: int,
        program: Path | str | None = PROGRAM,
        **options: object,
    ) -> None:
        self.port = port
        self.client = redis.Redis(HOST, port, socket_timeout=5, **options)  # type: ignore[call-overload]
        self._program = program
        self._arguments = arguments
        self._log = folder / f"{port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, ready: bool = True) -> None:
        """Start it, with more *options* this time; *ready*: return when it answers."""
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        program = str(find_program(self._program).path)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*launcher, program, *self._arguments, *options],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        if ready:
            wait_until(self.answers, lambda: f"{self.port} answers\n{self.log()}")

    def answers(self) -> bool:
        with suppress(redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            return bool(self.client.ping())
        return False

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it in order: all that was written is in its file."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=20)

    def kill(self) -> None:
        """End it by SIGKILL; safe twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.client.close()


def data_server(folder: Path, *options: str, **client: object) -> Process:
    """Return a server for data, with an append-only file; started by `start`."""
    port = free_port()
    data = folder / f"data-{port}"
    data.mkdir()
    fixed = ["--bind", HOST, "--port", str(port), "--dir", str(data), "--save", ""]
    fixed += [
        "--enable-debug-command",
        "local",
        "--appendonly",
        "yes",
        "--repl-diskless-sync-delay",
        "0",
    ]
    return Process([*fixed, *options], folder=folder, port=port, **client)


class FailoverCell:
    """A primary, its replica and the Sentinels that watch them."""

    def __init__(self, folder: Path, *, sentinels: int) -> None:
        self.servers = [data_server(folder), data_server(folder)]
        quorum = sentinels // 2 + 1
        self.sentinels = [self._sentinel(folder, quorum) for _ in range(sentinels)]
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"agentq+sentinel://{hosts}/{SERVICE}"
        self.primary, self.replica = self.servers

    def _sentinel(self, folder: Path, quorum: int) -> Process:
        port = free_port()
        home = folder / f"sentinel-{port}"
        home.mkdir()
        text = _SENTINEL.format(
            port=port, folder=home, service=SERVICE, host=HOST, primary=self.servers[0].port,
            quorum=quorum, down_after=DOWN_AFTER_MS,
        )  # fmt: skip
        (home / "sentinel.conf").write_text(text)
        return Process([str(home / "sentinel.conf"), "--sentinel"], folder=folder, port=port)

    def start(self) -> None:
        """Start all of them; return when the Sentinels know each other and the replica."""
        self.primary.start()
        self.replica.start()
        self.replica.client.replicaof(HOST, self.primary.port)
        self.wait_replicated()
        for sentinel in self.sentinels:
            sentinel.start()
        wait_until(self._acquainted, "the Sentinels know each other and the replica", 30)

    def _acquainted(self) -> bool:
        states = [s.client.sentinel_master(SERVICE) for s in self.sentinels]
        others = len(self.sentinels) - 1
        return all(
            state["num-slaves"] == 1 and state["num-other-sentinels"] == others for state in states
        )

    def wait_replicated(self) -> None:
        """Wait until the replica has what the primary has."""
        wait_until(lambda: self.primary.client.wait(1, 100), "the replica is up to date", 30)

    # -- faults -----------------------------------------------------------------------------------

    def cut_replica_off(self) -> None:
        """Stop the replica and end its link: what the primary takes from now on, it never gets."""
        self.replica.send(signal.SIGSTOP)
        self.primary.client.client_kill_filter(_type="replica")

    def kill_primary(self) -> None:
        """Kill the primary; a stopped replica goes on."""
        self.primary.kill()
        self.replica.send(signal.SIGCONT)

    def fail_over(self) -> None:
        """Ask for a planned failover, as before maintenance."""
        wait_until(self._asked, "a Sentinel agrees to fail over", 30)

    def _asked(self) -> bool:
        with suppress(redis.exceptions.ResponseError):  # NOGOODSLAVE right after the start
            return bool(self.sentinels[0].client.sentinel_failover(SERVICE))
        return False

    def wait_promoted(self) -> float:
        """Wait until the replica is the primary for all Sentinels; return `time.monotonic()`."""
        promoted = self.replica
        wait_until(
            lambda: promoted.answers() and promoted.client.role()[0] == b"master",
            lambda: f"{promoted.port} is promoted\n{self.sentinels[0].log()}", 60,
        )  # fmt: skip
        answered = time.monotonic()
        wait_until(
            lambda: all(
                s.client.sentinel_master(SERVICE)["port"] == promoted.port for s in self.sentinels
            ),
            "the Sentinels name it",
            30,
        )
        self.primary, self.replica = self.replica, self.primary
        return answered

    def stop(self) -> None:
        """End all of them."""
        for process in (*self.sentinels, *self.servers):
            process.kill()


@contextmanager
def failover_cell(*, sentinels: int = 3) -> Iterator[FailoverCell]:
    """Run a cell of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aq-failover-")))
        cell = FailoverCell(folder, sentinels=sentinels)
        stack.callback(cell.stop)
        stack.callback(gc.collect)  # as in `private_server`
        cell.start()
        yield cell
