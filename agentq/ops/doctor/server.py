"""The server: version, persistence, memory, fork, replicas, and agentq's functions in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from agentq.host.affinity import effective
from agentq.host.machine import read_machine
from agentq.host.numa import at_home
from agentq.host.topology import format_cores, read_topology
from agentq.ops.doctor.cli import commands, setting
from agentq.ops.doctor.facts import Facts
from agentq.ops.doctor.finding import Finding, error, note, unchecked, warning
from agentq.ops.doctor.roots import Roots
from agentq.ops.plan import plan_of
from agentq.store import library
from agentq.store.client import Store

ADMISSION = 0.8
"""Beyond this share of maxmemory new work is refused, see `_admission.lua`."""

NEARLY = 0.6
FORK_MS = 200
SILENT_S = 10
_LEAST = "min-replicas-to-write"
_MEANT = {"always", "everysec"}
"""Of the server of `agentq up`."""

_OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
_OK = {"aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"}


def version(facts: Facts) -> Iterator[Finding]:
    """Find a server without functions."""
    name = facts.info.get("server_name", "redis")
    text = facts.info.get(f"{name}_version", facts.info.get("redis_version", "0"))
    found = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if found < _OLDEST.get(name, (7, 0)):
        yield error(
            "broker.version",
            f"the server is {name} {text}",
            why="every change of a queue is a function, which came with Redis 7.0 and Valkey 7.2",
            remedy="apt install valkey-server (Debian 13), or redis-server 7 (Debian 12)",
        )


def persistence(facts: Facts) -> Iterator[Finding]:
    """Name the mode and what it may lose; find one that does not work."""
    said = facts.cell.broker.persistence
    if not facts.config:
        yield unchecked(
            "broker.persistence", said, remedy="run agentq doctor as a user who may CONFIG GET"
        )
    elif facts.config["appendonly"] != "yes":
        finding = error if facts.production else warning
        yield finding(
            "broker.persistence", said,
            why="what was accepted is gone after a restart of the server",
            remedy=setting(facts, "appendonly", "yes"),
        )  # fmt: skip
    elif facts.config["appendfsync"] not in (_MEANT if facts.embedded else {"always"}):
        finding = note if facts.config["appendfsync"] == "everysec" else warning
        yield finding(
            "broker.persistence", said,
            why="a step that was accepted within that time is gone after a crash of the machine; "
            "a kill of the server alone loses nothing",
            remedy=f"{setting(facts, 'appendfsync', 'always')} (a fast disk pays little: pipelined "
            "calls share the fsync); or durable = 'replica' under [broker]",
        )  # fmt: skip
    yield from _unwritten(facts)


def _unwritten(facts: Facts) -> Iterator[Finding]:
    for name in sorted(_OK):
        if facts.info.get(name, "ok") != "ok":
            yield error(
                "broker.persistence",
                f"{name} is {facts.info[name]}",
                why="the server can not write its data: a restart loses what came since",
                remedy="look at the server's log and its disk: df -h, then "
                f"{commands(facts, 'BGREWRITEAOF')}",
            )


def memory(facts: Facts, *, node_bytes: int | None = None) -> Iterator[Finding]:
    """Find a server that drops keys, has no limit, or is nearly full.

    *node_bytes*: of the memory node that it is kept on; None: it may have the machine's.
    """
    policy = facts.config.get("maxmemory-policy") or facts.info.get("maxmemory_policy")
    if policy not in {None, "noeviction"}:
        yield error(
            "broker.eviction",
            f"maxmemory-policy is {policy}",
            why="a full server throws away what it likes: results, runs, whole queues",
            remedy=setting(facts, "maxmemory-policy", "noeviction"),
        )
    used, limit = facts.number("used_memory"), facts.number("maxmemory")
    total = node_bytes or facts.number("total_system_memory")
    if not limit and not facts.embedded:
        finding = warning if facts.production else note
        yield finding(
            "broker.maxmemory", "the server has no maxmemory",
            why="a flood of work is accepted until the kernel ends the server; with a limit "
            "producers get QueueFull at 80 % of it and workers go on",
            remedy=setting(facts, "maxmemory", f"{_half(total)}mb"),
        )  # fmt: skip
    elif limit and used > NEARLY * limit:
        refused = used > ADMISSION * limit
        finding = error if refused else warning
        yield finding(
            "broker.maxmemory", f"{used / 2**20:.0f} of {limit / 2**20:.0f} MB are used",
            why="new work is refused (QueueFull, reason memory)" if refused
            else "from 80 % on new work is refused",
            remedy="agentq status shows what waits; more workers, shorter runs.keep and "
            "result_ttl, or a larger maxmemory",
        )  # fmt: skip
    if total and limit > NEARLY * total:
        yield warning(
            "broker.maxmemory",
            f"maxmemory is {limit / 2**20:.0f} MB of the {'node' if node_bytes else 'machine'}'s "
            f"{total / 2**20:.0f} MB",
            why="while the append-only file is rewritten, what changes is there twice",
            remedy=setting(facts, "maxmemory", f"{_half(total)}mb"),
        )


def _half(total: int) -> int:
    return max(64, total // 2**21)


def fork(facts: Facts) -> Iterator[Finding]:
    """Find a server that its fork holds up."""
    took = facts.number("latest_fork_usec") / 1000
    if took > FORK_MS:
        yield warning(
            "broker.fork",
            f"the last fork took {took:.0f} ms",
            why="every call waits meanwhile; it grows with the server's memory",
            remedy="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; smaller cells "
            "(broker.cell), or auto-aof-rewrite-percentage higher",
        )


def node_bytes(facts: Facts, roots: Roots) -> int | None:
    """Return the memory of the node that a server of this machine is kept on; None: of no one."""
    pid = _pid(facts, roots)
    if pid is None:
        return None
    topology = read_topology(root=roots.sys, allowed=effective(pid=pid))
    return next((one.memory_bytes for one in topology.memory if one.number == topology.home), None)


def memory_node(facts: Facts, roots: Roots) -> Iterator[Finding]:
    """Find a server of this machine that is not kept beside its memory, where there are nodes."""
    machine = read_machine(root=roots.root)
    seat = plan_of(facts.settings, cpu_steps=False, machine=machine).broker
    pid = _pid(facts, roots)
    if seat.node is None or pid is None:
        return
    cores = effective(pid=pid)
    found = at_home(pid, cores, root=roots.root)
    if found is None:
        yield warning(
            "broker.memory_node",
            f"the server (process {pid}) may run on cores {format_cores(cores)}, of several memory "
            "nodes",
            why="what it stores is then on one of them and it on the other: each access crosses "
            "the interconnect",
            remedy="systemctl edit redis-server (or valkey-server), under [Service] the lines "
            f"CPUAffinity={format_cores(seat.cores)}, NUMAPolicy=bind, NUMAMask={seat.node}, and "
            "a restart",
        )
    elif finding := found[1].finding(found[0], process="the server", pid=pid):
        yield replace(finding, subject="broker.memory_node")


def _pid(facts: Facts, roots: Roots) -> int | None:
    """Return the server's process id; None: it is elsewhere, or in a container of its own."""
    pid = facts.number("process_id")
    programs = ("redis-server", "valkey-server")
    here = facts.local and any(pid in roots.named(program) for program in programs)
    return pid if here else None


def connections(facts: Facts) -> Iterator[Finding]:
    """Find a server that has nearly all connections it takes."""
    there, most = facts.number("connected_clients"), facts.number("maxclients")
    if most and there > ADMISSION * most:
        yield warning(
            "broker.connections",
            f"{there} of {most} connections are taken",
            why="the next worker or producer is refused",
            remedy=setting(facts, "maxclients", 2 * most),
        )


def replicas(facts: Facts) -> Iterator[Finding]:
    """Find replicas that are missing, late, or taken for the primary."""
    broker = facts.cell.broker
    if facts.info.get("role") == "slave":
        yield error(
            "broker.role", broker.replication,
            why="every write is refused",
            remedy="name the primary in broker.url, or agentq+sentinel://host:26379/SERVICE",
        )  # fmt: skip
        return
    if not any(replica.online for replica in broker.replicas):
        if facts.settings.broker.durable == "replica":
            yield error(
                "broker.replicas", 'broker.durable is "replica" and no replica is attached',
                why="every submit raises NotReplicated",
                remedy="redis-cli -h REPLICA REPLICAOF PRIMARY 6379",
            )  # fmt: skip
        elif facts.production:
            yield warning(
                "broker.replicas", broker.replication,
                why="while this machine is down, nothing runs; with its disk everything is gone",
                remedy="redis-cli -h REPLICA REPLICAOF PRIMARY 6379, and Sentinels",
            )  # fmt: skip
    there, wanted = facts.number("min_slaves_good_slaves"), facts.config.get(_LEAST, "0")
    if there < int(wanted):
        yield error(
            "broker.replicas", f"{_LEAST} is {wanted}, and {there} replicas keep up",
            why="every write is refused (NOREPLICAS)",
            remedy=f"attach the replica that is missing, or {setting(facts, _LEAST, there)}",
        )  # fmt: skip
    for replica in broker.replicas:
        if not replica.online or replica.silent_s > SILENT_S:
            yield warning(
                "broker.replicas",
                f"replica {replica.address} was last heard {replica.silent_s} s ago, is "
                f"{replica.behind:,} bytes behind, {'online' if replica.online else 'loading'}",
                why="a failover to it loses what it has not received",
                remedy=f"look at the log of {replica.address}, and at the link to it",
            )


def functions(store: Store, facts: Facts) -> Iterator[Finding]:
    """Find functions that are missing, older, or of a working copy; none is loaded."""
    found = store.find_functions()
    if found is None or found.revision < library.REVISION:
        finding = error if facts.production else warning
        there = f"has revision {found.revision}" if found else "has none"
        yield finding(
            "broker.functions",
            f"this build needs functions of revision {library.REVISION}; the server {there}",
            why="nothing can be submitted or fetched before they are there; a worker loads them "
            "where its user may",
            remedy="agentq broker init",
        )
    elif found.edited:
        yield note(
            "broker.functions",
            f"the server's functions have revision {found.revision} and other code: {found.digest}",
            why="a working copy of agentq loaded them, or another build of the same revision",
            remedy="agentq broker init",
        )
