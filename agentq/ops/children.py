"""The processes that `agentq up` and `agentq demo` start: started, watched, restarted, ended.

    start --> announces itself --> ready --> ends by itself --> started again
                                                            --> given up after `EARLY_DEATHS`
    stop: SIGTERM to all at once, SIGKILL after a limit; each by its id

A child is told where to announce itself (`--announce FD`, the writing end of a pipe) and whose
child it is (`--parent PID`: the kernel ends it with that process). The pipe's end of file is also
how its death is noticed, so nothing polls.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from agentq.clock import format_duration
from agentq.errors import ProcessFailed

EARLY_DEATHS = 3
"""In a row, then it is given up."""
EARLY = timedelta(seconds=5)
"""What is early."""
_LOG_LINES = 8
_SOON = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What to start: ``python -m agentq`` with *arguments*."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to this process' own."""
    log: Path | None = None
    """Where its output goes; None: where this process' goes."""
    essential: bool = True
    """Whether all the others are of no use without it, once it has run."""
    on_end: Callable[[int], str] = lambda _: ""
    """Called with its exit status when it has ended by itself; what it returns is said too."""


@dataclass(kw_only=True)
class _Child:
    spec: Spec
    process: subprocess.Popen[bytes] | None = None
    pipe: int = -1
    began: float = 0.0
    early_deaths: int = 0
    announced: str = ""
    text: bytes = b""


class Children:
    """Belongs to the main thread: the kernel ends children with the thread that started them."""

    def __init__(self, *, stop_limit: timedelta, start_limit: timedelta) -> None:
        """Begin without any.

        Args:
            stop_limit: what all together may take to end before they are killed.
            start_limit: what each may take to announce itself.
        """
        self._stop_limit = stop_limit
        self._start_limit = start_limit
        self._children: list[_Child] = []

    @property
    def pids(self) -> dict[str, int]:
        """Return name -> process id of those that run."""
        return {c.spec.name: c.process.pid for c in self._children if c.process}

    def start(self, spec: Spec) -> None:
        """Start one more; returns at once."""
        child = _Child(spec=spec)
        self._children.append(child)
        self._launch(child)

    def await_ready(self) -> dict[str, str]:
        """Wait until each has announced itself; return name -> announcement.

        Raises:
            ProcessFailed: one did not in time, or ended; has its last log lines.
        """
        until = time.monotonic() + self._start_limit.total_seconds()
        while waiting := [child for child in self._children if not child.announced]:
            left = until - time.monotonic()
            if left <= 0:
                limit = format_duration(self._start_limit)
                raise ProcessFailed(
                    f"{_who(waiting[0])} was not ready within {limit}{_tail(waiting[0])}"
                )
            self.round(left)
        return {child.spec.name: child.announced for child in self._children}

    def round(self, timeout: float) -> list[str]:
        """Wait at most *timeout* seconds for something to happen; return what is to be said of it.

        Raises:
            ProcessFailed: one ended early three times in a row.
        """
        pipes = {child.pipe: child for child in self._children if child.pipe >= 0}
        readable, _, _ = select.select(list(pipes), [], [], timeout)
        said = []
        for pipe in readable:
            child = pipes[pipe]
            if data := os.read(pipe, 4096):
                said += self._hear(child, data)
            else:
                said.append(self._ended(child))
        return said

    def stop(self, on_wait: Callable[[list[str]], None] = lambda _: None) -> None:
        """End all; safe twice. A second Ctrl-C kills them at once.

        *on_wait* gets the names of those that have not ended after a second.
        """
        running = [child.process for child in self._children if child.process]
        try:
            for process in running:
                process.terminate()
            began = time.monotonic()
            _await_ends(running, began + _SOON.total_seconds())
            waiting = [
                c.spec.name for c in self._children if c.process and c.process.poll() is None
            ]
            if waiting:
                on_wait(waiting)
            _await_ends(running, began + self._stop_limit.total_seconds())
        finally:
            for process in running:
                process.kill()  # nothing happens where it has ended
                process.wait()
            for child in self._children:
                self._forget(child)
            self._children.clear()

    def _launch(self, child: _Child) -> None:
        spec = child.spec
        reading, writing = os.pipe()
        own = ("--announce", str(writing), "--parent", str(os.getpid()))
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, writing)
            output = stack.enter_context(spec.log.open("ab")) if spec.log else None
            child.process = subprocess.Popen(  # noqa: S603 -- this package's own command
                [*python_command(), *spec.arguments, *own],
                env={**os.environ, **spec.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[writing],
                start_new_session=True,  # Ctrl-C is for the parent, which stops all in order
            )
        child.pipe, child.text, child.began = reading, b"", time.monotonic()

    def _hear(self, child: _Child, data: bytes) -> list[str]:
        child.text += data
        *lines, child.text = child.text.split(b"\n")
        said = [line.decode(errors="replace") for line in lines]
        again = [f"again: {line}" for line in said] if child.announced else []
        child.announced = child.announced or (said[0] if said else "")
        return again

    def _ended(self, child: _Child) -> str:
        process = child.process
        assert process is not None  # noqa: S101 -- its pipe was open
        status = process.wait()
        lived = time.monotonic() - child.began
        child.early_deaths = child.early_deaths + 1 if lived < EARLY.total_seconds() else 0
        who, tail = _who(child), _tail(child)
        self._forget(child)
        how = how_it_ended(status)
        more = f"; {line}" if (line := child.spec.on_end(status)) else ""
        if status and not child.announced:
            raise ProcessFailed(f"{child.spec.name} ended {how}{tail}")
        if child.early_deaths >= EARLY_DEATHS:
            if child.spec.essential:
                raise ProcessFailed(f"{child.spec.name} ended {how} again and again{tail}")
            return f"{child.spec.name} ended {how} again and again: given up{tail}"
        self._launch(child)
        return f"{who} ended {how} and is started again{more}"

    def _forget(self, child: _Child) -> None:
        child.process = None
        if child.pipe >= 0:
            os.close(child.pipe)
            child.pipe = -1


def _await_ends(processes: list[subprocess.Popen[bytes]], until: float) -> None:
    """Wait for all of them, at most until the monotonic clock says *until*."""
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))


def how_it_ended(status: int) -> str:
    """Return exit *status* in words for behind "ended"; negative: a signal, as `Popen` has it."""
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def python_command() -> list[str]:
    """Return what starts agentq's command line in a new process."""
    checkout = Path(__file__).parents[2]
    # The working directory may hold a module of any name: look there only for the app.
    safe = [] if Path.cwd() == checkout else ["-P"]
    return [sys.executable, *safe, "-m", "agentq"]


def _who(child: _Child) -> str:
    return f"{child.spec.name} (process {child.process.pid if child.process else '-'})"


def _tail(child: _Child) -> str:
    log = child.spec.log
    if log is None:
        return "; it said why above"
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().split("\n")
    # Without its path: the demo, which alone has logs, removes them with its folder.
    return "; the last lines of its log:\n" + "\n".join(lines[-_LOG_LINES:])
