"""Tells systemd how this process stands, and notes what it holds for when it is found dead.

Nothing happens where no supervisor asked: it says so by the variables of sd_notify(3) and
systemd.exec(5), which `agentq up` sets for its workers too.

    NOTIFY_SOCKET       ready, stopping, a line of status
    WATCHDOG_USEC       how long it may stay silent; then it is taken for hung and is ended
    RUNTIME_DIRECTORY   a folder that lives as long as this process, and not longer
    CREDENTIALS_DIRECTORY   secrets that its ExecStopPost= does not get
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from agentq.host.process import began
from agentq.settings.sources import CREDENTIAL_PREFIX, CREDENTIALS_VARIABLE

READY = "READY=1"
STOPPING = "STOPPING=1"
_ALIVE = "WATCHDOG=1"
_BROKER = f"{CREDENTIAL_PREFIX}broker.url"
_PATIENCE_S = 0.1
"""What a supervisor that does not read may cost this process."""

_LONGEST_S = 1.0
"""Between two signs of life; what is rendered as WatchdogSec has this as slack."""


def tell(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send *lines* (`READY`, `STOPPING`, ``STATUS=...``); return whether somebody was there."""
    with contextlib.suppress(OSError), _link(environ) as link:
        link.sendall("\n".join(lines).encode())
        return True
    return False


def _link(environ: Mapping[str, str]) -> socket.socket:
    """Return a link to the supervisor.

    Raises:
        OSError: nobody is there, or no file is left to make one.
    """
    address = environ.get("NOTIFY_SOCKET")
    if not address:
        raise FileNotFoundError("NOTIFY_SOCKET")
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        link.settimeout(_PATIENCE_S)
        link.connect(f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError:
        link.close()
        raise
    return link


class Watchdog:
    """Gives signs of life while everything moves; created in the process that is watched."""

    def __init__(self, *, environ: Mapping[str, str] = os.environ) -> None:
        """Read whether this process is watched."""
        limit_s = int(environ.get("WATCHDOG_USEC", "0")) / 1e6
        own = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.every_s = min(_LONGEST_S, limit_s / 4) if own else 0.0
        """0: nobody watches."""
        self._environ = environ
        self._told = 0.0
        self._link: socket.socket | None = None
        """Kept: a process that has no file left is at a limit, and not hung."""

    def feed(self, *, moves: bool) -> None:
        """Say that this process is alive, if it *moves* and the last time is long enough ago."""
        now = time.monotonic()
        if self.every_s and moves and now - self._told >= self.every_s:
            self._told = now
            try:
                self._link = self._link or _link(self._environ)
                self._link.sendall(_ALIVE.encode())
            except OSError:
                self.close()  # it may be another one next time

    def close(self) -> None:
        """Close the link; the next sign opens one. Safe twice."""
        if self._link is not None:
            self._link.close()
        self._link = None


class LeaseNote:
    """The name of this process' lease in a file: whoever finds it dead hands back what it held.

    With it stands whose it is, by process id and time of its beginning: of one that lives nothing
    may be handed back.

    Beside it lies the broker's URL, where this process has it as a credential: systemd (252, 257)
    shows credentials to the main process, not to ExecStopPost=. A unit of its own for the hand-back
    would need root to start it, and the reason of the end, and race with the end of this folder.
    The copy is for those who can read the credential too: root and the service's user (0600 in
    RuntimeDirectoryMode=0700); from the units that only look it is hidden as that is. It goes with
    the note, at the latest with the folder; it is on a tmpfs too, but on one that may be swapped.
    """

    def __init__(self, *, environ: Mapping[str, str] = os.environ) -> None:
        """Read where; nowhere unless a supervisor gave a folder."""
        folder = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        self.folder = Path(folder) if folder else None
        """Also that of the copied credential."""
        self._path = self.folder / "agentq-lease" if self.folder else None
        self._credentials = environ.get(CREDENTIALS_VARIABLE)

    def write(self, worker: str) -> None:
        """Note the lease that is held from now on; whole or not at all."""
        if self._path is not None:
            with contextlib.suppress(OSError):  # without it the lease runs out by itself
                if self._credentials and (url := Path(self._credentials) / _BROKER).exists():
                    _replace(self._path.with_name(_BROKER), url.read_bytes())
                own = os.getpid()
                _replace(self._path, f"{worker}\n{own} {began(own)}".encode())

    def read(self) -> str | None:
        """Return the lease of the process that wrote; None: it held none when it ended."""
        return self._lines()[0]

    def holder(self) -> int | None:
        """Return the process that wrote, if it lives."""
        pid, _, then = (self._lines()[1] or "").partition(" ")
        now = began(int(pid)) if pid.isdecimal() else None
        return int(pid) if now is not None and str(now) == then else None

    def _lines(self) -> tuple[str | None, str | None]:
        """Return the lease and whose it is."""
        if self._path is None or not self._path.exists():
            return None, None
        worker, _, whose = self._path.read_text(encoding="utf-8").partition("\n")
        return worker, whose

    def remove(self) -> None:
        """Note that nothing is held any more."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._path.with_name(_BROKER).unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, for its owner alone."""
    new = path.with_name(f".{path.name}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)
