"""The worker units of this machine beside its plan, where `agentq deploy install` made them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from agentq.ops.deploy import systemd
from agentq.ops.deploy.machine import ROOT, Machine
from agentq.ops.doctor.finding import Finding, error, warning
from agentq.ops.doctor.roots import Roots


def units(roots: Roots) -> Iterator[Finding]:
    """Find workers that run without a seat in the plan, and seats without a worker."""
    machine = Machine(root=roots.root)
    if machine.record is None or roots.root != ROOT or not systemd.runs_here():
        return
    seats = [one.name for one in machine.plan().processes]
    names = {*systemd.loaded_workers(), *map(systemd.worker_unit, seats)}
    yield from beside_plan(systemd.show(sorted(names)), seats)


def beside_plan(found: Sequence[systemd.Unit], seats: Collection[str]) -> Iterator[Finding]:
    """Find what differs between the units of workers and the processes that are planned."""
    for unit in found:
        runs = unit.active == "active"
        if unit.active not in {"inactive", "failed"} and unit.instance not in seats:
            yield warning(
                "workers.units", f"{unit.instance} runs and is not in the plan of this machine",
                why="an agentq scale or its pool is over: it goes on with the code and the "
                "settings that it began with",
                remedy=f"agentq rollout {unit.instance.rpartition('-')[0]} drains and ends it",
            )  # fmt: skip
        elif unit.instance in seats and not runs:
            yield error(
                "workers.units",
                f"{unit.instance} is in the plan of this machine and {unit.active}, after "
                f"{unit.restarts} restarts",
                why="its pool has less room than was planned, or none",
                remedy=f"journalctl -u {unit.name} -n 50 says why: mend that"
                + ("" if unit.active == "activating" else "; systemctl start agentq.target"),
            )
