"""A real `celery worker` in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
_READY = " ready."


class WorkerProcess:
    """Started by `start`, which returns when it takes work."""

    def __init__(
        self,
        app: str,
        *,
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        inside: tuple[str, ...] = (),
    ) -> None:
        """Run *app*; in a *folder*, as the program `celery` does: Python does not look there.

        *inside*: what the command begins with, to run on a `Machine`.
        """
        self.app = app
        self.folder = folder
        self.inside = inside
        self.options = options
        self.env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.NamedTemporaryFile(prefix="aq-worker-", suffix=".log")  # noqa: SIM115

    @property
    def pid(self) -> int:
        """The main process' id."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True, within: float = 25) -> None:
        """Start it and wait until it is ready, unless it is to end before."""
        self._log.truncate(0)
        command = [*self.inside, sys.executable, *(("-P",) if self.folder else ()), "-m", "celery"]
        command += ["-A", self.app, "worker", "-l", "INFO"]
        self._process = subprocess.Popen(
            [*command, *self.options],
            cwd=self.folder or ROOT,
            env={**os.environ, **self.env, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self._log.fileno(),
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that `kill` reaches the pool's children too
        )
        if wait:
            wait_until(self._ready, lambda: f"worker ready\n{self.log()}", timeout=within)

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"worker ended with {self._process.returncode}\n{self.log()}")
        return _READY in self.log()

    def log(self) -> str:
        """Return what it has printed."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the main process."""
        os.kill(self.pid, number)

    def wait_ended(self, timeout: float = 20) -> int:
        """Wait until it has ended by itself; return its exit status."""
        wait_until(lambda: not self.alive(), lambda: f"worker ends\n{self.log()}", timeout)
        assert self._process is not None
        return self._process.returncode

    def kill(self) -> None:
        """Kill it and its children, as the kernel would."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, timeout: float = 20) -> int:
        """Ask it to end its work and go; return its exit status."""
        if self._process is None or self._process.poll() is not None:
            return -1 if self._process is None else self._process.returncode
        self._process.terminate()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            log = self.log()
            self.kill()
            raise AssertionError(f"worker did not end within {timeout:g} s\n{log}") from error

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self.alive():
            self.kill()
        self._log.close()
