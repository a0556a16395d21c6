"""What the control group this process is in lets it use: cores, CPU time, memory, tasks.

Version 1 (a folder for each controller) and 2 (one tree, also beside version 1), within a container
or not. Quota, memory and tasks hold for a group and all above it, so the least of the path counts;
a container that sees its own group as the root finds its limits there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agentq.host.kernel_file import number_of, text_of
from agentq.host.topology import parse_cores

N = TypeVar("N", int, float)

_NO_LIMIT = 1 << 60
"""Version 1 says "no limit" with a number near 2^63."""


@dataclass(frozen=True, kw_only=True)
class Cgroup:
    """The limits that hold here; None: there is none."""

    cores: tuple[int, ...] | None = None
    """Logical cores of the cpuset in effect."""
    quota: float | None = None
    """CPU time in cores: 1.5 is 150 ms in each 100 ms."""
    memory_bytes: int | None = None
    tasks: int | None = None
    """Threads and processes together (``pids.max``)."""
    tasks_now: int | None = None
    """How many there are, in the group that has the limit (else in the own one)."""


def read_cgroup(*, root: Path = Path("/"), process: str = "self") -> Cgroup:
    """Return the limits of the group *process* is in, read below *root* (``sys``, ``proc``)."""
    groups = _Groups(root, process)
    tasks, tasks_now = groups.tasks()
    return Cgroup(
        cores=groups.cores(),
        quota=groups.least("cpu", _quota),
        memory_bytes=groups.least("memory", _memory),
        tasks=tasks,
        tasks_now=tasks_now,
    )


class _Groups:
    """Finds the folders of a process' group, the own one first and then those above it."""

    def __init__(self, root: Path, process: str) -> None:
        self._mounts = root / "sys/fs/cgroup"
        self._paths: dict[str, str] = {}
        for line in text_of(root / "proc" / process / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                self._paths[controller] = path

    def folders(self, controller: str) -> Iterator[Path]:
        for mount in self._mounted(controller):
            path = self._paths.get(controller, self._paths.get("", "/"))
            below = mount / path.lstrip("/")
            while below != mount and mount in below.parents:
                if below.is_dir():
                    yield below
                below = below.parent
            yield mount

    def _mounted(self, controller: str) -> list[Path]:
        if (self._mounts / "cgroup.controllers").exists():
            return [self._mounts]
        if controller in self._paths:  # its folder may be called cpu,cpuacct
            names = self._mounts.glob("*")
            return [mount for mount in names if controller in mount.name.split(",")][:1]
        return [self._mounts / "unified"]

    def cores(self) -> tuple[int, ...] | None:
        names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
        for folder in self.folders("cpuset"):
            for name in names:
                if text := text_of(folder / name):
                    return parse_cores(text)
        return None

    def least(self, controller: str, read: Callable[[Path], N | None]) -> N | None:
        found = [read(folder) for folder in self.folders(controller)]
        return min((limit for limit in found if limit is not None), default=None)

    def tasks(self) -> tuple[int | None, int | None]:
        found = [
            (number_of(folder / "pids.max"), number_of(folder / "pids.current"))
            for folder in self.folders("pids")
        ]
        limited = [(limit, now) for limit, now in found if limit is not None]
        if limited:
            return min(limited, key=lambda pair: pair[0] - (pair[1] or 0))
        return None, next((now for _, now in found if now is not None), None)


def _quota(folder: Path) -> float | None:
    quota, _, period = text_of(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us")
    if quota in {"", "max", "-1"}:
        return None
    return int(quota) / int(period)


def _memory(folder: Path) -> int | None:
    found = (number_of(folder / name) for name in ("memory.max", "memory.limit_in_bytes"))
    return next((limit for limit in found if limit is not None and limit < _NO_LIMIT), None)
