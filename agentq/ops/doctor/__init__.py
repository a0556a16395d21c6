"""`agentq doctor`: looks at settings, machine, server, workers and queues, and changes nothing.

A check is a function that yields findings: one file for each subject. One that can not be made says
so, and stops no other: a server that is away leaves the machine's checks as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agentq.errors import AgentQError, BrokerNotConfigured, SettingsError
from agentq.host.machine import read_machine
from agentq.host.topology import allowed_cores
from agentq.ops.application import any_app
from agentq.ops.doctor import (
    access,
    configured,
    disk,
    interrupts,
    latency,
    machine,
    queues,
    server,
    stock,
    units,
    workers,
)
from agentq.ops.doctor.cli import client
from agentq.ops.doctor.facts import Facts, read_facts
from agentq.ops.doctor.finding import Finding, error, unchecked, warning
from agentq.ops.doctor.roots import Roots
from agentq.ops.plan import plan_of
from agentq.settings import Settings
from agentq.settings.installed import has_units

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ
    from agentq.store.client import Store

__all__ = ["Finding", "Roots", "diagnose", "examine", "is_well"]

Check = Callable[[], Iterable[Finding]]
_AGAIN = "agentq doctor once more; as root, where it is a matter of rights"


@dataclass(frozen=True, kw_only=True)
class _Case:
    """What is looked at."""

    settings: Settings
    named: bool
    """Whether the user's app was named."""
    roots: Roots
    environ: Mapping[str, str]


def diagnose(app: str | None, *, roots: Roots | None = None) -> tuple[Finding, ...]:
    """Return the findings of all checks, in the order of their subjects.

    Args:
        app: ``module:attribute``; None: the setting `app`, else the settings alone. Of one that can
            not be imported that is a finding, and the settings alone are looked at too.
        roots: where /proc and /sys are.
    """
    roots = roots or Roots()
    try:
        aq = any_app(app)
    except AgentQError as refused:
        return (*_refused(refused), *_without_app(roots))
    return examine(aq, named=bool(app or aq.settings.app), roots=roots)


def examine(aq: AgentQ, *, named: bool, roots: Roots) -> tuple[Finding, ...]:
    """Return the findings on an app's settings, this machine and the cell."""
    case = _Case(settings=aq.settings, named=named, roots=roots, environ=os.environ)
    facts, absent = _facts(aq)
    cpu_steps = any(step.kind == "cpu" for step in aq.steps.values())
    on_machine = _machine(case.settings, roots, cpu_steps=cpu_steps)
    found = [*_made(_settings(case)), *_made(on_machine), *absent]
    if facts is not None:
        found += _made(_cell(aq.store, facts, roots))
        found += _made(_shared_machine(facts, roots))
    return tuple(found)


def _without_app(roots: Roots) -> tuple[Finding, ...]:
    """Return the findings where the app is not to be had: its broker and workers are wanted now."""
    from agentq.flows.app import AgentQ  # noqa: PLC0415 -- as in `any_app`

    try:
        return examine(AgentQ("agentq"), named=True, roots=roots)
    except AgentQError:  # the settings, which is told
        missing = unchecked(
            "broker", "the settings do not load", remedy="what is above, then agentq doctor"
        )
        return (missing, *_made(_machine(Settings(), roots, cpu_steps=False)))


def _refused(failure: AgentQError) -> Iterator[Finding]:
    name = "settings.refused" if isinstance(failure, SettingsError) else "settings.app"
    remedy = "correct it there; agentq settings shows what is live"
    if name == "settings.app":
        remedy = "mend the import; all else is judged by the settings without the app"
    for line in str(failure).splitlines():
        yield error(name, line, why="no command starts with it", remedy=remedy)


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether there is nothing to be done: notes alone, or nothing."""
    return all(one.severity == "note" for one in findings)


def _facts(aq: AgentQ) -> tuple[Facts | None, list[Finding]]:
    """Return what the server says, or why it says nothing."""
    if stock.is_stock(aq.settings.broker.url):
        return None, [*stock.stock(aq.settings.broker.url)]
    because: AgentQError
    try:
        return read_facts(aq.store, aq.settings), []
    except BrokerNotConfigured as failure:
        because = failure
        finding = warning if not configured.is_production(aq.settings) else error
        found = finding(
            "broker.reachable", str(failure),
            why="without a broker nothing is submitted and nothing runs",
            remedy="as root, or with AGENTQ_BROKER__URL" if has_units() else "agentq up",
        )  # fmt: skip
    except AgentQError as failure:
        because = failure
        found = error(
            "broker.reachable", str(failure),
            why="producers are refused, workers wait for it",
            remedy=f"{client(aq.store.address, {})} PING tries the same (agentq settings shows the "
            "URL); systemctl status redis, or valkey, on its machine",
        )  # fmt: skip
    kinds = "the server, its disk, workers and queues"
    missing = f"{kinds}: {type(because).__name__}"
    return None, [found, unchecked("broker", missing, remedy=found.remedy)]


def _settings(case: _Case) -> dict[str, Check]:
    settings = case.settings
    return {
        "settings.worker": partial(configured.leases, settings),
        "settings.production": partial(configured.production, settings),
        "settings.model": partial(configured.model, settings),
        "settings.blobs": partial(configured.blobs, settings),
        "settings.dashboard": partial(configured.dashboard, settings),
        "settings.log": partial(configured.logs, settings),
        "settings.variables": partial(configured.variables, settings, case.environ),
        "settings.app": partial(configured.app, settings, named=case.named),
    }


def _machine(settings: Settings, roots: Roots, *, cpu_steps: bool) -> dict[str, Check]:
    def planned() -> Iterator[Finding]:
        machine_ = read_machine(root=roots.root)
        found = plan_of(settings, cpu_steps=cpu_steps, machine=machine_)
        yield from machine.plan(found, roots)

    return {
        "machine.plan": planned,
        "machine.open_files": partial(machine.open_files, roots),
        "machine.governor": partial(machine.governor, roots),
        "machine.core_load": partial(machine.core_load, roots),
        "machine.allocator": lambda: machine.allocator(settings),
        "workers.units": partial(units.units, roots),
    }


def _cell(store: Store, facts: Facts, roots: Roots) -> dict[str, Check]:
    return {
        "broker.version": partial(server.version, facts),
        "broker.persistence": partial(server.persistence, facts),
        "broker.memory": lambda: server.memory(facts, node_bytes=server.node_bytes(facts, roots)),
        "broker.fork": partial(server.fork, facts),
        "broker.connections": partial(server.connections, facts),
        "broker.replicas": partial(server.replicas, facts),
        "broker.functions": partial(server.functions, store, facts),
        "broker.acl": partial(access.access, store, facts),
        "broker.latency": lambda: latency.round_trip(latency.measure(store)),
        "broker.slowlog": partial(latency.remembered, store, facts),
        "disk": partial(disk.disk, facts, roots),
        "workers.pool": partial(workers.alive, facts),
        "workers.builds": partial(workers.builds, facts),
        "workers.clock": partial(workers.clocks, facts),
        "workers.blobs": partial(workers.unwritten, facts),
        "workers.allocator": partial(workers.allocators, facts),
        "queues.depth": partial(queues.depth, facts),
        "queues.bytes": partial(queues.size, store, facts),
        "queues.paused": partial(queues.stopped, facts),
        "queues.retries": partial(queues.retries, facts),
        "queues.dead": partial(queues.dead, facts),
        "queues.delayed": partial(queues.delayed, store, facts),
    }


def _shared_machine(facts: Facts, roots: Roots) -> dict[str, Check]:
    """Return what depends on both: the server's own machine, and the workers of this one."""
    host, cores = os.uname().nodename, allowed_cores()
    here = {
        core
        for worker in facts.cell.workers
        if worker.host == host and worker.state == "up"
        for core in worker.cores
    }
    checks: dict[str, Check] = {
        "workers.pinning": partial(workers.pinning, facts, cores=len(cores)),
        "workers.limits": partial(workers.limits, facts, roots, host=host),
        "workers.remote_memory": partial(workers.remote_memory, facts, roots, host=host),
        "interrupts.affinity": partial(
            interrupts.interrupts, roots, worker_cores=sorted(here), allowed=cores
        ),
    }
    if facts.local:
        checks |= {
            "broker.memory_node": partial(server.memory_node, facts, roots),
            "machine.overcommit": partial(machine.overcommit, roots),
            "machine.huge_pages": partial(machine.huge_pages, roots),
        }
    return checks


def _made(checks: Mapping[str, Check]) -> Iterator[Finding]:
    for name, check in checks.items():
        try:
            yield from check()
        except Exception as failure:  # noqa: BLE001 -- one check that breaks stops no other
            yield unchecked(name, f"{type(failure).__name__}: {failure}", remedy=_AGAIN)
