"""What systemd is asked and told, by systemctl."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from agentq.errors import DeployError

TARGET = "agentq.target"
SLICE = "agentq.slice"
_RUNNING = Path("/run/systemd/system")
_ASKED = (
    "Id", "ActiveState", "SubState", "Result", "MainPID", "NRestarts", "MemoryCurrent",
    "StatusText",
)  # fmt: skip
_UNKNOWN = str(2**64 - 1)
_USUAL = timedelta(seconds=30)
START_LIMIT = timedelta(seconds=100)
"""What starting may take: TimeoutStartSec of a worker, and a little for systemd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit as systemd has it."""

    name: str
    active: str
    """``active``, ``activating``, ``deactivating``, ``failed``, ``inactive``."""
    sub: str
    result: str
    """How it ended last: ``success``, ``timeout``, ``signal``, ``oom-kill``, ``watchdog``, ..."""
    pid: int
    """0: it has no process."""
    restarts: int
    memory: int | None
    """Bytes of its cgroup; None where the kernel does not count."""
    status: str

    @property
    def instance(self) -> str:
        """Return ``shared-3`` of ``agentq-worker@shared-3.service``."""
        return self.name.partition("@")[2].removesuffix(".service")


def worker_unit(instance: str) -> str:
    """Return the unit of a worker process."""
    return f"agentq-worker@{instance}.service"


def runs_here() -> bool:
    """Whether this machine is run by systemd."""
    return _RUNNING.is_dir()


def require_systemd() -> None:
    """Refuse where this machine is not run by systemd.

    Raises:
        DeployError: it is not.
    """
    if not runs_here():
        raise DeployError(
            "this machine is not run by systemd; `agentq up` runs the same processes, and "
            "`agentq deploy render --out DIR` writes the units to read"
        )


def require_root() -> None:
    """Refuse where units can not be changed.

    Raises:
        DeployError: no systemd, or not root.
    """
    require_systemd()
    if os.geteuid() != 0:
        raise DeployError("only root may change this machine's units: sudo")


def systemctl(*words: str, within: timedelta = _USUAL) -> str:
    """Run systemctl and return what it printed.

    Raises:
        DeployError: it refused, or took longer than *within*.
    """
    return run("systemctl", "--no-pager", "--no-ask-password", *words, within=within)


def run(*command: str, within: timedelta = _USUAL) -> str:
    """Run a program of the system's and return what it printed; errors as `systemctl`."""
    try:
        done = subprocess.run(  # noqa: S603 -- system programs by fixed names
            ["/usr/bin/env", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within.total_seconds(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        limit = f"{within.total_seconds():g} s"
        raise DeployError(f"{' '.join(command)} did not end within {limit}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise DeployError(f"{' '.join(command)}: {said or f'exit code {done.returncode}'}")
    return done.stdout


def show(names: Sequence[str]) -> list[Unit]:
    """Return these units, in this order; one that does not exist is inactive."""
    if not names:
        return []
    text = systemctl("show", f"--property={','.join(_ASKED)}", *names)
    return [_unit(part) for part in text.strip().split("\n\n")]


def enablement(unit: str) -> str:
    """Return ``enabled``, ``disabled``, ``static``, ...; "" for a unit that there is not."""
    return systemctl("show", "--property=UnitFileState", "--value", unit).strip()


def loaded_workers() -> list[str]:
    """Return the worker units that systemd knows of, running, failed or waiting."""
    text = systemctl("list-units", "--all", "--plain", "--no-legend", "--full", worker_unit("*"))
    return sorted(line.split()[0] for line in text.splitlines() if line.strip())


def running_workers() -> set[str]:
    """Return the worker processes that systemd has started or is about to, as ``shared-3``."""
    units = show(loaded_workers())
    return {unit.instance for unit in units if unit.active not in {"inactive", "failed"}}


def last_line(unit: str, *, since: float = 0) -> str:
    """Return what the processes of a unit logged last; "" for nothing, or no journal.

    Args:
        unit: its name.
        since: seconds of the wall clock; what is older does not count.
    """
    own = (f"_SYSTEMD_UNIT={unit}", f"--since=@{since:.3f}", "--output=cat")
    # Newest first: with --since, systemd 252 takes the first 20 of all lines, and not the last.
    latest = ("--reverse", "--lines=20")
    with contextlib.suppress(DeployError):
        lines = run("journalctl", "--no-pager", "--quiet", *own, *latest).split("\n")
        return next((line.strip() for line in lines if line.strip()), "")
    return ""


def of_pool(instances: Iterable[str], pool: str) -> list[str]:
    """Return those of *pool*, sorted."""
    return sorted(name for name in instances if name.rpartition("-")[0] == pool)


def _unit(text: str) -> Unit:
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    memory = found.get("MemoryCurrent", "")
    return Unit(
        name=found["Id"],
        active=found["ActiveState"],
        sub=found["SubState"],
        result=found.get("Result", ""),
        pid=int(found.get("MainPID") or 0),
        restarts=int(found.get("NRestarts") or 0),
        memory=int(memory) if memory.isdecimal() and memory != _UNKNOWN else None,
        status=found.get("StatusText", ""),
    )
