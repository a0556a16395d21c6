"""The plan of a machine: which process gets which cores, node, slots, memory and limits, and why.

`planner` makes it; `agentq plan` prints it, `agentq worker` takes its seat from it, units are
rendered from it. As JSON (`as_json`) it can be kept: `agentq worker --plan FILE` then takes its
seat from there, whatever a unit's own limits make of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from agentq.errors import SettingsError
from agentq.host.finding import Finding
from agentq.host.limits import ROOM, Need


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What the settings ask for one pool; None: planned."""

    name: str
    purpose: Literal["exclusive", "shared"]
    processes: int
    cpus: tuple[int, ...] | None = None
    slots: int | None = None
    """Set for the pool; kept as it is."""
    most_slots: int = 1000
    threads: int | None = None
    children: int | None = None
    """Processes for steps of kind="cpu" of each process; 0: the app has no such steps."""
    spare: int = 0
    """Children that are kept started for when one ends; none where there are no children."""
    memory_bytes: int | None = None
    suspects: int = 16
    """Steps that may run alone at once, in a process each."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """One worker process."""

    pool: str
    index: int
    cores: tuple[int, ...]
    """Logical cores its loop and threads run on."""
    children: tuple[tuple[int, ...], ...]
    """The cores of each of its processes for steps of kind="cpu", by slot."""
    node: int | None
    """The NUMA node its memory is bound to; None: there is no choice, or its cores are on many.

    Its children take memory of the nodes they are on.
    """
    slots: int
    threads: int
    memory_bytes: int
    """With its children: where it stops taking work, and its unit's limit."""
    open_files: int
    """Descriptors it may need."""
    tasks: int
    """Threads and processes it may need, children included; a limit is `task_limit`."""
    reason: str

    @property
    def name(self) -> str:
        """Return e.g. ``critical-0``."""
        return f"{self.pool}-{self.index}"

    @property
    def all_cores(self) -> tuple[int, ...]:
        """Logical cores of the process and its children, ascending."""
        return tuple(sorted({*self.cores, *(cpu for child in self.children for cpu in child)}))

    @property
    def task_limit(self) -> int:
        """What TasksMax= or pids.max are to be for it."""
        return ROOM * self.tasks


@dataclass(frozen=True, kw_only=True)
class Broker:
    """Where a broker of this machine runs."""

    cores: tuple[int, ...]
    """Logical cores: those left to the system, else all of its node; none: on one node, any."""
    node: int | None
    """The node its memory is bound to; None: there is no choice."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where everything runs, what it may use, and what stands against it."""

    processes: tuple[Process, ...]
    """By pool in the settings' order, then by index."""
    reserved: tuple[int, ...]
    """Logical cores for the system, the broker and interrupts; none below 8 physical cores where
    the processes need them all."""
    idle: tuple[int, ...]
    """Logical cores that were given to nobody."""
    broker: Broker
    needs: tuple[Need, ...]
    findings: tuple[Finding, ...]

    def seat(self, pool: str, index: int) -> Process | None:
        """Return process *index* of *pool*; None where the plan has none."""
        found = (one for one in self.processes if (one.pool, one.index) == (pool, index))
        return next(found, None)

    def as_json(self) -> bytes:
        """Return the plan as JSON, which `read_plan` reads back."""
        return _PLAN.dump_json(self, indent=2)


_PLAN = TypeAdapter(Plan)


def read_plan(path: Path) -> Plan:
    """Return the plan that was kept in *path*.

    Raises:
        SettingsError: it can not be read, or is none.
    """
    try:
        return parse_plan(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SettingsError(
            f"{path} is no plan of this version ({error}); write it: agentq plan --json > {path}"
        ) from error


def parse_plan(text: bytes) -> Plan:
    """Return the plan that `Plan.as_json` wrote; `ValidationError` where *text* is none."""
    return _PLAN.validate_json(text)
