"""`agentq` as a person runs it: in a process of its own, with a home of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import orjson

from agentq.inference.server.weights import default_cache_dir
from tests.support.waiting import wait_until

MARK = "AQ_TEST_HOME"


class Home:
    """A user's folders; whatever was started from here is found again by its environment."""

    def __init__(self, folder: Path, python: Path | None = None) -> None:
        self.folder = folder
        self.temporary = folder / "t"
        self.work = folder / "w"
        for made in (self.temporary, self.work):
            made.mkdir()
        self._command = [str(python or sys.executable), "-P", "-m", "agentq"]

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTQ_", "XDG_"))}
        own = {
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder),
            "XDG_CACHE_HOME": _cache(),
            "TMPDIR": str(self.temporary),
            "COLUMNS": "100",
            MARK: str(self.folder),
        }
        return {**kept, **own, **more}

    def command(self, *arguments: str) -> list[str]:
        return [*self._command, *arguments]

    def run(
        self, *arguments: str, timeout: float = 25, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.work,
            env=self.environment(**env or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def json(
        self, *arguments: str, timeout: float = 25, env: Mapping[str, str] | None = None
    ) -> Any:
        done = self.run(*arguments, "--json", timeout=timeout, env=env)
        return orjson.loads(done.stdout)

    @contextmanager
    def running(
        self, *arguments: str, until: str, within: float = 25, env: Mapping[str, str] | None = None
    ) -> Iterator[RunningCommand]:
        """Start a command, wait until it has said *until*, end it afterwards."""
        with RunningCommand(self.command(*arguments), self, env or {}) as command:
            command.wait_for(until, within)
            yield command

    def processes(self) -> dict[int, str]:
        """Return process id -> command line of all that were started from here and live.

        Known by their environment, and the server, which writes over its own, by its socket.
        """
        mark = f"{MARK}={self.folder}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdigit():
                    continue
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
                if words and (marked or str(self.folder) in words):  # one that has ended has none
                    found[int(entry.name)] = words
        return found

    def one_process(self, part: str) -> int:
        """Return the id of the one process whose command line has *part*."""
        [pid] = [pid for pid, words in self.processes().items() if part in words]
        return pid

    def temporary_files(self) -> list[str]:
        return sorted(str(p.relative_to(self.temporary)) for p in self.temporary.rglob("*"))


def _cache() -> str:
    """Return the real user's cache folder, since the models built there take seconds to build."""
    models = default_cache_dir()
    return str(models if models.name.startswith("agentq-") else models.parents[1])


class RunningCommand:
    """One command that goes on until it is told to end."""

    def __init__(
        self, command: list[str], home: Home, env: Mapping[str, str], *, log: str = "out.log"
    ) -> None:
        self._log = home.folder / log
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=home.work, env=home.environment(**env), stdout=output,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str, within: float = 25) -> None:
        def said() -> bool:
            assert self.process.poll() is None or text in self.output, self.output
            return text in self.output

        wait_until(said, f"{text!r} in the output", timeout=within)

    def end(self, number: int = signal.SIGINT, within: float = 25) -> int:
        self.process.send_signal(number)
        return self.process.wait(within)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def home(python: Path | None = None) -> Iterator[Home]:
    """A home whose path is short enough for sockets, and gone afterwards with what it started."""
    folder = Path(tempfile.mkdtemp(prefix="aqh-", dir="/tmp"))
    found = Home(folder, python)
    try:
        yield found
    finally:
        for pid in found.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
