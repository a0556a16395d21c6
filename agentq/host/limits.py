"""What the kernel lets this process have: open files, threads, mappings, a backlog of connections.

    before the start   `needs`: what the plan needs of each, what there is, whose limit, the remedy
    at the start       `raise_open_files`: the soft limit raised as far as it is allowed
    while it runs      `uses`: how near a process is to its limits; 80 % is a finding

A limit that is reached hits whoever asks next, not whoever used it up: hence room of 2-3 times.
"""

from __future__ import annotations

import contextlib
import errno
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from agentq.host.cgroup import Cgroup, read_cgroup
from agentq.host.finding import Finding
from agentq.host.kernel_file import number_of, text_of

ROOT = Path("/")
OPEN_FILES = 65_535
"""What a worker is to be allowed at least: a descriptor for each call of each of its steps."""
ROOM = 3
"""Limits on threads and processes are planned this many times as high as the need."""
FULL = 0.8
"""Use against limit from which it is a finding."""

FILES, THREADS = "open files", "threads"
SHARED_MEMORY = "no semaphore in /dev/shm (df -h /dev/shm)"
_NO_THREAD = "can't start new thread"  # CPython's words, whichever limit was met
_FORKING = {"_execute_child", "spawnv_passfds", "_launch", "read_signed"}
"""Of subprocess and multiprocessing: "try again", or no answer of the fork server, means there that
no process may be started."""
_SEMAPHORES = "synchronize.py"  # of multiprocessing


_NR_OPEN = Path("/proc/sys/fs/nr_open")  # what RLIM_INFINITY means for this limit
_MORE_FILES = f"LimitNOFILE={OPEN_FILES} in the unit"
_MAPS = 65_530
_SOMAXCONN = 1_024
_DROP_IN = "systemctl edit agentq-worker@.service"


@dataclass(frozen=True, kw_only=True)
class OpenFiles:
    """How many descriptors the process may have: at first, now, and at most."""

    before: int
    now: int
    hard: int

    def __str__(self) -> str:
        """Return e.g. ``open files: 20000 (raised from 1024)``."""
        raised = f" (raised from {self.before})" if self.now > self.before else ""
        return f"open files: {self.now}{raised}"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may be had; None: no limit, or not known here."""

    open_files: int | None = None
    """The hard limit: a worker raises its soft one to it."""
    processes: int | None = None
    """Threads of this user (RLIMIT_NPROC), which root is exempt from."""
    tasks: int | None = None
    """Threads in the control group (pids.max, what TasksMax= sets)."""
    threads: int | None = None
    """Threads of the whole machine (kernel.threads-max)."""
    pids: int | None = None
    """Process and thread ids of the whole machine (kernel.pid_max)."""
    mappings: int | None = None
    """Memory mappings of a process (vm.max_map_count): two a thread and some for each library."""
    backlog: int | None = None
    """Connections that wait to be accepted (net.core.somaxconn)."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What the plan needs of one limit, beside what there is."""

    name: str
    need: int
    value: int | None
    """None: no limit, or not known here."""
    source: str
    """Whose limit it is."""
    why: str
    remedy: str
    """The line or command that raises it."""

    @property
    def met(self) -> bool:
        """Whether there is enough."""
        return self.value is None or self.value >= self.need

    def finding(self) -> Finding | None:
        """Return what to say of it; None where there is enough."""
        if self.met:
            return None
        seen = f"{self.value}, and the plan needs {self.need} ({self.source})"
        return Finding(
            severity="warning", subject=self.name, seen=seen, why=self.why, remedy=self.remedy
        )


@dataclass(frozen=True, kw_only=True)
class Use:
    """How much of one limit is in use now."""

    name: str
    used: int
    limit: int
    source: str
    remedy: str

    @property
    def share(self) -> float:
        """Use against limit, 0-1."""
        return self.used / self.limit if self.limit else 1.0

    def __str__(self) -> str:
        """Return e.g. ``open files: 52 of 64 (RLIMIT_NOFILE)``."""
        return f"{self.name}: {self.used} of {self.limit} ({self.source})"

    def finding(self) -> Finding | None:
        """Return what to say of it; None below 80 %."""
        if self.share < FULL:
            return None
        return Finding(
            severity="error" if self.used >= self.limit else "warning",
            subject=self.name,
            seen=f"{self.used} of {self.limit} in use ({self.source})",
            why="who asks for one more fails, whoever has used them up",
            remedy=self.remedy,
        )


def raise_open_files() -> OpenFiles:
    """Raise the soft limit to the hard one and return what really holds; children inherit it.

    Never fails: where the system refuses, `now` is what it was.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ceiling() if hard == resource.RLIM_INFINITY else hard
    if before not in {hard, resource.RLIM_INFINITY} and most > before:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):
            most = before  # macOS states a hard limit that it does not grant
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(before=before, now=now, hard=most)


def read_limits(*, root: Path = ROOT, cgroup: Cgroup | None = None) -> Limits:
    """Return what may be had by this process, read below *root*."""
    group = read_cgroup(root=root) if cgroup is None else cgroup
    own = _own_limits(root, "self")
    return Limits(
        open_files=own.get("Max open files", (None, None))[1],
        processes=own.get("Max processes", (None, None))[1],
        tasks=group.tasks,
        threads=number_of(root / "proc/sys/kernel/threads-max"),
        pids=number_of(root / "proc/sys/kernel/pid_max"),
        mappings=number_of(root / "proc/sys/vm/max_map_count"),
        backlog=number_of(root / "proc/sys/net/core/somaxconn"),
    )


def needs(limits: Limits, *, tasks: int, most_tasks: int, open_files: int) -> tuple[Need, ...]:
    """Return what the plan needs of each limit.

    Args:
        limits: what there is.
        tasks: threads and processes of all workers together at their busiest.
        most_tasks: those of the largest worker.
        open_files: descriptors of the largest worker at its busiest.
    """
    files = max(OPEN_FILES, open_files)
    all_tasks = ROOM * tasks
    thread_fails = "a worker at the limit can not start a thread or a process"
    return (
        Need(
            name=FILES, need=files, value=limits.open_files, source="RLIMIT_NOFILE, hard",
            why="a worker at the limit can neither connect nor accept",
            remedy=f"LimitNOFILE={files} in the unit, or '* hard nofile {files}' in "
            "/etc/security/limits.d/agentq.conf",
        ),
        Need(
            name="threads of the user", need=all_tasks, value=limits.processes,
            source="RLIMIT_NPROC", why=thread_fails,
            remedy=f"LimitNPROC={all_tasks} in the unit, or '* hard nproc {all_tasks}' in "
            "/etc/security/limits.d/agentq.conf",
        ),
        Need(
            name="threads of the group", need=all_tasks, value=limits.tasks,
            source="pids.max", why=thread_fails,
            remedy=f"TasksMax={ROOM * most_tasks} in each worker's unit ({_DROP_IN}), more in its "
            "slice; docker run --pids-limit",
        ),
        Need(
            name="threads of the machine", need=all_tasks,
            value=_least(limits.threads, limits.pids),
            source="the lower of kernel.threads-max and kernel.pid_max", why=thread_fails,
            remedy=f"sysctl -w kernel.threads-max={all_tasks} kernel.pid_max={all_tasks}",
        ),
        Need(
            name="memory mappings", need=max(_MAPS, ROOM * 2 * most_tasks), value=limits.mappings,
            source="vm.max_map_count", why="threads and libraries can not be mapped beyond it",
            remedy=f"sysctl -w vm.max_map_count={max(_MAPS, ROOM * 2 * most_tasks)}",
        ),
        Need(
            name="waiting connections", need=_SOMAXCONN, value=limits.backlog,
            source="net.core.somaxconn",
            why="a fleet that comes back at once is refused by a broker with a short queue",
            remedy=f"sysctl -w net.core.somaxconn={_SOMAXCONN}",
        ),
    )  # fmt: skip


def uses(
    pid: int | None = None, *, root: Path = ROOT, users_threads: bool = False
) -> tuple[Use, ...]:
    """Return how near process *pid*, by default this one, is to its limits; about 0.3 ms.

    *users_threads*: also those of its user, of whom root has no limit; looks at every process.

    Raises:
        ProcessLookupError: there is no such process.
        PermissionError: it belongs to another user.
    """
    process = "self" if pid is None else str(pid)
    try:
        files = len(list((root / "proc" / process / "fd").iterdir()))
        mappings = (root / "proc" / process / "maps").read_bytes().count(b"\n")
    except FileNotFoundError as error:
        raise ProcessLookupError(f"no process {process}") from error
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE}:
            raise
        return (_no_file_left(),)  # not even one to look with
    own = _own_limits(root, process)
    group = read_cgroup(root=root, process=process)
    open_files = own.get("Max open files", (None, None))[0]
    threads = _users_threads(root, process) if users_threads else None
    found = (
        (FILES, files, open_files, "RLIMIT_NOFILE", _MORE_FILES),
        (
            "threads of the user", threads, own.get("Max processes", (None, None))[0],
            "RLIMIT_NPROC", "LimitNPROC=",
        ),
        ("threads of the group", group.tasks_now, group.tasks, "pids.max", "TasksMax= in the unit"),
        (
            "threads of the machine", _threads_now(root),
            _least(
                number_of(root / "proc/sys/kernel/threads-max"),
                number_of(root / "proc/sys/kernel/pid_max"),
            ),
            "kernel.threads-max", "sysctl -w kernel.threads-max=",
        ),
        (
            "memory mappings", mappings, number_of(root / "proc/sys/vm/max_map_count"),
            "vm.max_map_count", "sysctl -w vm.max_map_count=",
        ),
    )  # fmt: skip
    return tuple(
        Use(name=name, used=used, limit=limit, source=source, remedy=_raised(remedy, limit))
        for name, used, limit, source, remedy in found
        if used is not None and limit is not None
    )


def exhausted(error: BaseException | None) -> str | None:
    """Return the name of the limit that *error*, or what it comes from, has met; None: of none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            return FILES
        if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
            return THREADS
        if isinstance(error, BlockingIOError | EOFError) and _raised_in(error)[0] in _FORKING:
            return THREADS
        if isinstance(error, OSError) and _raised_in(error)[1] == _SEMAPHORES:
            return SHARED_MEMORY
        error = error.__cause__ or error.__context__
    return None


def _raised_in(error: BaseException) -> tuple[str, str]:
    """Return the names of the function that raised *error* and of its file."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    code = at.tb_frame.f_code if at is not None else None
    return (code.co_name, Path(code.co_filename).name) if code is not None else ("", "")


def fullest(error: BaseException) -> str:
    """Return which limit *error* has met, as far as it can be told: use, limit, whose, remedy."""
    name = exhausted(error)
    if name is None:
        return str(error)
    found = [use for use in uses(users_threads=name == THREADS) if use.name.startswith(name)]
    if not found:
        return f"{name}: {error}"
    use = max(found, key=lambda use: use.share)
    if name == THREADS and use.share < FULL:
        return f"{error}, for want of memory it seems (free -m; ulimit -v): {use}"
    return f"{use}; {use.remedy}"


def _no_file_left() -> Use:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Use(name=FILES, used=most, limit=most, source="RLIMIT_NOFILE", remedy=_MORE_FILES)


def _raised(remedy: str, limit: int) -> str:
    return f"{remedy}{2 * limit}" if remedy.endswith("=") else remedy


def _own_limits(root: Path, process: str) -> dict[str, tuple[int | None, int | None]]:
    """Return name -> (soft, hard) of /proc/PID/limits; None: unlimited."""
    found = {}
    for line in text_of(root / "proc" / process / "limits").splitlines()[1:]:
        name, soft, hard = line[:26].strip(), *line[26:].split()[:2]
        found[name] = (_count(soft), _count(hard))
    return found


def _count(word: str) -> int | None:
    return None if word == "unlimited" else int(word)


def _users_threads(root: Path, process: str) -> int | None:
    """Return how many threads the user of *process* has; None for root."""
    user = _user(root, process)
    if user == 0:
        return None
    count = 0
    for folder in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if _user(root, folder.name) == user:
                count += len(list((folder / "task").iterdir()))
    return count


def _user(root: Path, process: str) -> int | None:
    """Return the real user: the folder's owner is root where a process has changed its own."""
    found = re.search(r"^Uid:\s+(\d+)", text_of(root / "proc" / process / "status"), re.MULTILINE)
    return int(found[1]) if found else None


def _threads_now(root: Path) -> int | None:
    words = text_of(root / "proc/loadavg").split()
    return int(words[3].partition("/")[2]) if words else None


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _ceiling() -> int:
    return number_of(_NR_OPEN) or 10_240  # macOS' OPEN_MAX
