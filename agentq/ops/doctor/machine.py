"""The machine: open files, processes, sysctls, large pages, clock rate, allocator.

The limits are those of a process started from this shell; of workers that run, `workers` asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agentq.ops.doctor.finding import Finding, note, unchecked, warning
from agentq.ops.doctor.roots import Roots

if TYPE_CHECKING:
    from agentq.settings import Settings

OPEN_FILES = 65_535
"""A worker has a socket for each call under way and each caller that waits."""

BACKLOG = 511
"""What Redis and Valkey ask for (`tcp-backlog`); the kernel cuts it to somaxconn."""

MAPS = 65_530
"""The kernel's default: allocators and thread stacks take a few for each thread."""

NEED_FACTOR = 2
"""Limits are to be so many times the plan: restarts, suspects and shells come on top."""

FULL = 0.8
"""From this share on a limit is a finding before it is reached."""

_OTHER_THREADS = 12
"""Of one worker besides those for steps: loop, lease, watch, returns, telemetry."""

_STEADY = {"performance", "schedutil"}


def open_files(roots: Roots) -> Iterator[Finding]:
    """Find a limit that is too low, and a machine that is short of them."""
    hard = roots.limit("Max open files")
    if hard is not None and hard < OPEN_FILES:
        yield warning(
            "machine.open_files",
            f"a process may have {hard:,} files and sockets open (hard limit)",
            why=f"workers raise the soft limit to the hard one; each call, stream and caller takes "
            f"a socket, and {OPEN_FILES:,} carry thousands of steps at once",
            fix=f"LimitNOFILE={OPEN_FILES} in the unit, or a line `* hard nofile {OPEN_FILES}` in "
            "/etc/security/limits.conf and a new login",
        )
    used, _, most = (roots.proc / "sys/fs/file-nr").read_text(encoding="ascii").split()
    if int(used) > FULL * int(most):
        yield warning(
            "machine.open_files",
            f"{int(used):,} of the machine's {int(most):,} files are open",
            why="at the limit every process fails with 'Too many open files in system'",
            fix=f"sysctl -w fs.file-max={2 * int(most)}",
        )


def processes(roots: Roots, *, need: int) -> Iterator[Finding]:
    """Find a limit of threads and processes below `NEED_FACTOR` times what the pools *need*."""
    wanted = NEED_FACTOR * need
    for name, most, fix in _process_limits(roots):
        if most is not None and most < wanted:
            yield warning(
                "machine.processes",
                f"{name} is {most:,}; the pools of this machine need up to {need:,} threads and "
                "processes, restarts not counted",
                why="at the limit a worker can not start threads, nor the CPU pool its processes",
                fix=fix.format(wanted),
            )
    running = int((roots.proc / "loadavg").read_text(encoding="ascii").split()[3].split("/")[1])
    most = roots.number("sys/kernel/threads-max")
    if running > FULL * most:
        yield warning(
            "machine.processes",
            f"{running:,} of {most:,} threads that the machine may have are there",
            why="at the limit no process can start another thread",
            fix=f"sysctl -w kernel.threads-max={2 * most}",
        )


def _process_limits(roots: Roots) -> Iterator[tuple[str, int | None, str]]:
    """Yield name, limit (None: there is none), and what raises it to a number."""
    nproc = "LimitNPROC={0} in the unit, or `* hard nproc {0}` in /etc/security/limits.conf"
    yield "the limit of processes (ulimit -u)", roots.limit("Max processes"), nproc
    for name in ("kernel.threads-max", "kernel.pid_max"):
        number = roots.number(f"sys/{name.replace('.', '/')}")
        yield name, number, f"sysctl -w {name}={{0}}"
    for number in _cgroup_limits(roots):
        yield "pids.max of this control group", number, "TasksMax={0} in the unit"


def needed(settings: Settings, *, cores: int) -> int:
    """Return how many threads and processes the pools of these settings have at most."""
    worker = settings.worker
    children = (worker.cpu_processes or cores) + worker.suspects
    each = worker.threads + _OTHER_THREADS + children * _OTHER_THREADS
    return sum(pool.processes for pool in settings.pools.values()) * each


def _cgroup_limits(roots: Roots) -> Iterator[int]:
    """Yield the limits of pids above this process, of either version of cgroups."""
    for line in (roots.proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        folder = "cgroup" if not controllers else "cgroup/pids"
        if controllers not in {"", "pids"}:
            continue
        at = roots.sys / "fs" / folder
        for part in ("", *path.strip("/").split("/")):
            at /= part
            text = at.joinpath("pids.max").read_text() if (at / "pids.max").exists() else "max"
            if text.strip() != "max":
                yield int(text)


def backlog(roots: Roots) -> Iterator[Finding]:
    """Find a queue of connections that is too short for a fleet that comes back."""
    if (most := roots.number("sys/net/core/somaxconn")) < BACKLOG:
        yield warning(
            "machine.somaxconn",
            f"net.core.somaxconn is {most}",
            why="a fleet that reconnects at once is refused beyond it, and waits out its backoff",
            fix="sysctl -w net.core.somaxconn=4096",
        )


def overcommit(roots: Roots) -> Iterator[Finding]:
    """Find a kernel that may refuse the server's fork; for the machine that the server is on."""
    if (mode := roots.number("sys/vm/overcommit_memory")) != 1:
        yield warning(
            "machine.overcommit",
            f"vm.overcommit_memory is {mode}",
            why="to rewrite its append-only file the server forks; with little memory free the "
            "kernel may refuse that, and the file grows until the disk is full",
            fix="sysctl -w vm.overcommit_memory=1",
        )


def maps(roots: Roots) -> Iterator[Finding]:
    """Find too few memory maps."""
    if (most := roots.number("sys/vm/max_map_count")) < MAPS:
        yield warning(
            "machine.max_map_count",
            f"vm.max_map_count is {most:,}",
            why="each thread's stack and each arena of the allocator takes some: beyond it malloc "
            "fails although memory is free",
            fix=f"sysctl -w vm.max_map_count={MAPS}",
        )


def huge_pages(roots: Roots) -> Iterator[Finding]:
    """Find large pages forced on everybody; for the machine that the server is on."""
    path = roots.sys / "kernel/mm/transparent_hugepage/enabled"
    if "[always]" in path.read_text(encoding="ascii"):
        yield warning(
            "machine.huge_pages",
            "transparent huge pages are always on",
            why="after the server's fork each write copies 2 MB instead of 4 KB: pauses, and twice "
            "the memory",
            fix="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


def governor(roots: Roots) -> Iterator[Finding]:
    """Find cores that are clocked down between steps."""
    folder = roots.sys / "devices/system/cpu"
    found = Counter(
        path.read_text(encoding="ascii").strip()
        for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor")
    )
    if not found:
        yield unchecked(
            "machine.governor", "no clock governor is visible here (a virtual machine has none)",
            fix="on the host: cpupower frequency-info",
        )  # fmt: skip
    for name, count in found.items():
        if name not in _STEADY:
            yield warning(
                "machine.governor",
                f"{count} cores are clocked by governor {name!r}",
                why="steps come in bursts of a millisecond: a core that has slowed down in between "
                "answers late",
                fix="cpupower frequency-set -g performance",
            )


def allocator(settings: Settings, *, installed: Path | None) -> Iterator[Finding]:
    """Find a machine without the allocator that its pools ask for; *installed*: jemalloc's file."""
    wanting = [name for name, pool in settings.pools.items() if pool.allocator == "jemalloc"]
    if wanting and installed is None:
        yield warning(
            "machine.allocator",
            f"jemalloc is not there; {', '.join(sorted(wanting))} would run on glibc",
            why="glibc keeps what a burst took: a worker stays large (`agentq bench memory`)",
            fix='apt install libjemalloc2, or dnf install jemalloc; or allocator = "glibc"',
        )


def one_core(cores: int) -> Iterator[Finding]:
    """Say what a machine with a single core can not do."""
    if cores == 1:
        yield note(
            "machine.cores",
            "this process may use one core",
            why="critical and shared workers and the broker take turns on it: nothing is isolated",
            fix="a second core, or `taskset -p` and the container's cpuset if they hide some",
        )
