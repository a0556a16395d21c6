"""Kernel settings that are tried, as root, and put back whatever happens.

    as found --noted--> --set--> tried --put back--> as found --note taken away-->

The note lies in /run, which is empty after a start of the machine, as then the settings are their
own again. An error or a signal puts back at once; behind SIGKILL the next `agentq tune` does, by
the note. Its lock tells whether the process that wrote it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import orjson

from agentq.errors import BenchFailed
from agentq.host.kernel_file import text_of

NAMES = (
    "net.core.somaxconn", "net.ipv4.tcp_tw_reuse", "net.core.rmem_max", "net.core.wmem_max",
)  # fmt: skip
"""Those that deploy/systemd/sysctl.conf names."""

_ROOT = Path("/proc/sys")
_NAMESPACE = Path("/proc/self/ns/net")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def default_note() -> Path:
    """Return where it is noted: the settings are those of a network namespace."""
    return Path(f"/run/agentq-tune-{_NAMESPACE.stat().st_ino}.json")


class Sysctls:
    """Those of this machine, from `with` on; one process at a time."""

    def __init__(self, *, root: Path = _ROOT, note: Path | None = None) -> None:
        """Take the folder of the settings, and the file in which a change is noted."""
        self._root = root
        self._note = note or default_note()
        self._file: int | None = None
        self.said = ""
        """What was put back that a killed process had left."""
        self.left_out: tuple[str, ...] = ()
        """Which can not be tried here, and why."""
        self.found: dict[str, str] = {}
        """The others, and what they are."""

    def __enter__(self) -> Self:
        """Take the lock, put back what was left behind, see what may be set."""
        no_lock = self._take()
        if not no_lock and (line := self._put_back()):
            self.said = f"{line}: a tuning that was killed had left it"
        why = {name: no_lock or self._why_not(name) for name in NAMES}
        self.found = {name: text_of(self._path(name)) for name in NAMES if not why[name]}
        self.left_out = tuple(
            f"{', '.join(name for name in NAMES if why[name] == reason)}: not tried, {reason}"
            for reason in dict.fromkeys(filter(None, why.values()))
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Put back, and take the note away."""
        if self._file is not None:
            self._put_back()
            self._note.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None

    @contextmanager
    def holding(self, name: str, value: str) -> Iterator[None]:
        """Have a setting be *value* for as long as the block takes.

        Raises:
            BenchFailed: the kernel refuses it.
        """
        if value == self.found[name]:
            yield
            return
        try:
            self._begin({"name": name, "found": self.found[name], "tried": value})
            yield
        finally:
            self._put_back()

    def _take(self) -> str:
        """Take the lock; return why that is not possible."""
        while True:
            try:
                file = os.open(self._note, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            except OSError as error:
                return _said(error) + self._leftover()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return "another agentq tune tries them"
            if os.fstat(file).st_nlink:
                self._file = file
                return ""
            os.close(file)  # who had it until now has taken it away

    def _leftover(self) -> str:
        """Return what an ordinary user has to know of a tuning that was killed."""
        if not (note := _read(text_of(self._note).encode())):
            return ""
        name, found, tried = note["name"], note["found"], note["tried"]
        if text_of(self._path(name)) != tried:
            return ""
        return f" (a killed tuning left {name} at {tried}, which was {found}: that puts it back)"

    def _why_not(self, name: str) -> str:
        """Return why a setting can not be set here: writing to it what it is has no effect."""
        path = self._path(name)
        if not (now := text_of(path)):
            return "this kernel does not show it"
        try:
            path.write_text(now)
        except OSError as error:
            return _said(error)
        return ""

    def _put_back(self) -> str:
        """Undo what is noted; return what was done. What somebody has set since is theirs."""
        assert self._file is not None  # noqa: S101 -- locked
        with _undisturbed():
            note = _read(os.pread(self._file, 4096, 0))
            said = ""
            if note and text_of(self._path(note["name"])) == note["tried"]:
                self._set(note["name"], note["found"])
                said = f"{note['name']} = {note['found']}"
            os.ftruncate(self._file, 0)
        return said

    def _begin(self, note: dict[str, str]) -> None:
        assert self._file is not None  # noqa: S101 -- locked
        try:
            with _undisturbed():
                os.pwrite(self._file, orjson.dumps(note), 0)
                self._set(note["name"], note["tried"])
        except OSError as error:
            what = f"{note['name']} can not be set to {note['tried']}"
            raise BenchFailed(f"{what}: {error.strerror}") from error

    def _set(self, name: str, value: str) -> None:
        self._path(name).write_text(value)

    def _path(self, name: str) -> Path:
        return self._root / name.replace(".", "/")


def _read(text: bytes) -> dict[str, str] | None:
    """Return a note; one that is not whole is of a setting that had not been touched yet."""
    with contextlib.suppress(ValueError):
        note: dict[str, str] = orjson.loads(text)
        if isinstance(note, dict) and note.keys() == {"name", "found", "tried"}:
            return note
    return None


def _said(error: OSError) -> str:
    remedy = "that takes root" if os.geteuid() else "run it outside of the container"
    return f"{remedy} ({error.strerror})"


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off signals that end this process for some microseconds."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
