"""The workers of the cell, as they report at each renewal of their lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from agentq.broker.build import build
from agentq.errors import PlatformUnsupported
from agentq.host.limits import uses
from agentq.host.numa import at_home
from agentq.host.topology import format_cores
from agentq.ops.doctor.facts import Facts
from agentq.ops.doctor.finding import Finding, error, note, unchecked, warning
from agentq.ops.doctor.roots import Roots
from agentq.ops.units_here import start
from agentq.settings.installed import has_units
from agentq.store.skew import SKEW_SHOWN_MS


def alive(facts: Facts) -> Iterator[Finding]:
    """Find workers whose lease is over, and pools that nobody serves."""
    cell, pools = facts.cell, facts.settings.pools
    lost = [worker for worker in cell.workers if worker.state == "lost"]
    up = [worker for worker in cell.workers if worker.state == "up"]
    for worker in lost:
        yield warning(
            "workers.lease",
            f"{worker.name} (process {worker.pid} on {worker.host or 'an unknown host'}) lost its "
            f"lease {-worker.lease_ms / 1000:.0f} s ago with {worker.running} steps",
            why="they start elsewhere once a living worker of any pool sweeps"
            + ("" if up else ": there is none"),
            remedy=f"on its machine: {start()}",
        )
    waiting = {queue.pool for queue in cell.queues if queue.waiting}
    wanted = {name for name, pool in pools.items() if pool.processes}
    for name in cell.unserved(wanted | waiting):
        finding = error if name in waiting else warning if up else note
        yield finding(
            "workers.pool", f"no worker serves pool {name}"
            + (", and work waits in it" if name in waiting else ""),
            why="its steps wait until one does, or until their deadline",
            remedy=start(name),
        )  # fmt: skip


def builds(facts: Facts) -> Iterator[Finding]:
    """Find workers of several builds, or of others than this one."""
    found: dict[str, list[str]] = {}
    for worker in facts.cell.workers:
        if worker.state == "up":
            found.setdefault(worker.build or "one that does not say", []).append(worker.name)
    if len(found) > 1 or (found and build() not in found):
        listed = "; ".join(f"{one}: {', '.join(names)}" for one, names in found.items())
        yield warning(
            "workers.builds",
            f"this command is {build()}; workers are {listed}",
            why="a roll-out passes through this; left so, a step may wait parked for a worker that "
            "has its code",
            remedy="restart the workers that were left behind: "
            + ("agentq rollout" if has_units() else "agentq up"),
        )


def clocks(facts: Facts) -> Iterator[Finding]:
    """Find machines whose clock is off."""
    for worker in facts.cell.workers:
        if abs(worker.skew_ms) > SKEW_SHOWN_MS:
            side = "ahead of" if worker.skew_ms > 0 else "behind"
            yield warning(
                "workers.clock",
                f"the clock of {worker.name} is {abs(worker.skew_ms) / 1000:.0f} s {side} the "
                "broker's",
                why="work is timed by the broker's, but logs and events can not be put in order",
                remedy=f"timedatectl set-ntp true on {worker.host or 'that machine'}",
            )


def unwritten(facts: Facts) -> Iterator[Finding]:
    """Find workers that wait for blob storage."""
    for worker in facts.cell.workers:
        if worker.unwritten:
            yield warning(
                "workers.blobs",
                f"{worker.unwritten} steps of {worker.name} have ended and wait for blob storage",
                why="it can not be written from there; that process alone has their results",
                remedy=f"agentq settings | grep blobs on {worker.host or 'its machine'}: mount the "
                "folder, make room, or mend the credentials",
            )


def allocators(facts: Facts) -> Iterator[Finding]:
    """Find workers that run on another allocator than their pool's."""
    pools, silent = facts.settings.pools, []
    for worker in facts.cell.workers:
        live, _, _ = worker.allocator.partition(" ")
        pool = pools.get(worker.pools[0])
        if worker.state == "up" and not live:
            silent.append(worker.name)
        elif worker.state == "up" and pool is not None and live != pool.allocator:
            yield warning(
                "workers.allocator",
                f"{worker.name} runs on {worker.allocator}, its pool's setting is {pool.allocator}",
                why="glibc keeps what a burst took: the worker stays large",
                remedy="start it by `agentq up` or `agentq worker`, which preload it; apt install "
                "libjemalloc2 where it is missing",
            )
    if silent:
        yield unchecked(
            "workers.allocator", f"{', '.join(silent)} do not say which one they run on",
            remedy="grep -c jemalloc /proc/PID/maps on their machine",
        )  # fmt: skip


def pinning(facts: Facts, *, cores: int) -> Iterator[Finding]:
    """Find workers of an exclusive pool that share a core, on machines that have enough."""
    purposes = {name: pool.purpose for name, pool in facts.settings.pools.items()}
    up = [one for one in facts.cell.workers if one.state == "up" and one.cores]
    for one, other in combinations(up, 2):
        shared = set(one.cores) & set(other.cores)
        exclusive = "exclusive" in {purposes.get(one.pools[0]), purposes.get(other.pools[0])}
        here = [worker for worker in up if worker.host == one.host]
        if one.host == other.host and shared and exclusive and len(here) <= cores:
            yield warning(
                "workers.pinning",
                f"{one.name} and {other.name} share cores {format_cores(shared)}",
                why="a pool that is exclusive owns its cores: a burst of the other one delays it",
                remedy=f"leave pools.{one.pools[0]}.cpus and pools.{other.pools[0]}.cpus unset and "
                "start both by agentq up, or set them apart",
            )


def limits(facts: Facts, roots: Roots, *, host: str) -> Iterator[Finding]:
    """Find workers of this machine that are near a limit of the kernel's."""
    for worker in facts.cell.workers:
        if worker.host != host or worker.state != "up":
            continue
        try:
            found = uses(worker.pid, root=roots.root)
        except (ProcessLookupError, PermissionError) as error:
            yield unchecked(
                "workers.limits", f"{worker.name}: {type(error).__name__}",
                remedy="run agentq doctor as the workers' user, outside a container",
            )  # fmt: skip
            continue
        for use in found:
            if finding := use.finding():
                subject, seen = "workers.limits", f"{worker.name}: {use.name}: {finding.seen}"
                yield replace(finding, subject=subject, seen=seen)


def remote_memory(facts: Facts, roots: Roots, *, host: str) -> Iterator[Finding]:
    """Find workers of this machine whose memory is on another node than their cores."""
    for worker in facts.cell.workers:
        if worker.host != host or worker.state != "up":
            continue
        try:
            found = at_home(worker.pid, worker.cores, root=roots.root)
        except (ProcessLookupError, PermissionError, PlatformUnsupported) as error:
            yield unchecked(
                "workers.remote_memory", f"{worker.name}: {type(error).__name__}",
                remedy="run agentq doctor as root, outside a container",
            )  # fmt: skip
            continue
        if found is None:
            continue
        home, pages = found
        if finding := pages.finding(home, process=worker.name, pid=worker.pid):
            yield replace(finding, subject="workers.remote_memory")
