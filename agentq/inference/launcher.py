"""Starts the local model server as a process of its own and ends it again, by its id."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

import orjson

from agentq.clock import format_duration
from agentq.errors import AddressInUse, ServerFailed
from agentq.extras import pip_install

_STOP_LIMIT = timedelta(seconds=5)
_END_SHOWS = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModels:
    """What a started server has to offer.

    Attributes:
        url: for `model.base_url`.
        chat: name of the chat model; None where its packages are missing.
        embedding: name of the embedding model; likewise.
        slots: chat calls that it answers at once.
        missing: a line for each endpoint without a model: what to install.
    """

    url: str
    chat: str | None
    embedding: str | None
    slots: int
    missing: tuple[str, ...]


class ModelServer:
    """One server process; it ends with the process that started it, however that ends."""

    def __init__(
        self,
        *,
        log: Path,
        port: int = 0,
        slots: int = 1,
        cache: Path | None = None,
        start_timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        """Take the parts; nothing runs before `start`.

        Args:
            log: what the server writes; made anew at each start, the one before is `<log>.1`.
            port: of 127.0.0.1; 0 takes any free one.
            slots: chat calls answered at once; on a CPU more than one only make each slower.
            cache: where built weights are kept; None for the user's cache folder.
            start_timeout: until it is ready. It takes 1 s, and 6 s the first time on a machine.
        """
        self.models: ServedModels | None = None
        self._log = log
        self._port = port
        self._slots = slots
        self._cache = cache
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process else None

    @property
    def ended(self) -> int | None:
        """Its exit status once it has ended by itself."""
        return self._process.poll() if self._process else None

    def start(self) -> str:
        """Start it and return its base URL, once it answers; safe twice.

        One that has died is started anew at the same address.

        Raises:
            AddressInUse: the port belongs to somebody else.
            ServerFailed: it ended or was not ready in time; has the last line of its log.
        """
        if self.ended is not None:
            self.stop()
        if self.models is None:
            try:
                self.models = self._launch()
                self._port = int(self.models.url.rpartition(":")[2].partition("/")[0])
            except BaseException:
                self.stop()
                raise
        return self.models.url

    def stop(self) -> None:
        """End it and remove its socket; safe twice. Takes a fraction of a second."""
        process, self._process, self.models = self._process, None, None
        if process:
            process.terminate()
            try:
                process.wait(_STOP_LIMIT.total_seconds())
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    def _launch(self) -> ServedModels:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._log.replace(self._log.with_name(f"{self._log.name}.1"))
        self._folder = tempfile.TemporaryDirectory(
            prefix="agentq-model-", ignore_cleanup_errors=True
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- this package's own module
                self._command(self._folder.name),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the owner, which stops it in order
            )
        line = self._first_line(self._process)
        told = orjson.loads(line or b"{}")
        if told.get("error") == "AddressInUse":
            raise AddressInUse(f"{told['message']}; end what listens there or choose another port")
        if not told.get("ready"):
            trouble, last = self._trouble(self._process), told.get("message") or self._last_line()
            remedy = f"; {pip_install('models')}" if last.startswith("ModuleNotFoundError") else ""
            raise ServerFailed(
                f"the model server (process {self._process.pid}) {trouble}: {last}{remedy}"
            )
        return ServedModels(
            url=told["url"],
            chat=told["chat"],
            embedding=told["embedding"],
            slots=told["slots"],
            missing=tuple(told["missing"]),
        )

    def _command(self, folder: str) -> list[str]:
        options = {
            "--port": self._port,
            "--slots": self._slots,
            "--run-dir": folder,
            "--parent": os.getpid(),
            **({"--cache": self._cache} if self._cache else {}),
        }
        words = [str(word) for pair in options.items() for word in pair]
        return [sys.executable, "-m", "agentq.inference.server", *words]

    def _first_line(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return what it prints when ready; empty when it ended or took too long."""
        deadline = time.monotonic() + self._start_timeout.total_seconds()
        output, line = process.stdout, b""
        while output and not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([output], [], [], left)[0]:
                return b""
            if not (data := os.read(output.fileno(), 4096)):
                return b""
            line += data
        return line

    def _trouble(self, process: subprocess.Popen[bytes]) -> str:
        """Say why there was no ready line; its end shows a moment after that of its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"ended with status {process.wait(_END_SHOWS.total_seconds())}"
        return f"was not ready within {format_duration(self._start_timeout)}"

    def _last_line(self) -> str:
        """Return what it wrote last: of a traceback, the error."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
