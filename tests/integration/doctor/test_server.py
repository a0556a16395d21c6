"""What doctor finds at a server: provoked on a real one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agentq.ops.acl import Role, rules
from agentq.ops.doctor import access, cli, disk, latency, queues, server
from agentq.ops.doctor.roots import Roots
from agentq.store import library
from agentq.store.address import parse
from agentq.store.replication import Replica
from tests.support.cell import Cell
from tests.support.doctor import facts, names, told
from tests.support.redis_server import Server
from tests.unit.host.machines import write, write_host


def ran(own: Server, line: str) -> list[str]:
    """Return what a remedy prints that is pasted where only another server has the usual port."""
    if not shutil.which("redis-cli"):
        pytest.skip("apt install redis-tools")
    shell = f'valkey-cli() {{ redis-cli "$@"; }}; {line}'
    done = subprocess.run(
        ["/bin/bash", "-c", shell], capture_output=True, text=True, check=True, timeout=10
    )
    assert own.client.ping()
    return done.stdout.split()


def test_a_server_that_is_well_has_no_finding(cell: Cell) -> None:
    found = facts(cell, env="test")
    checks = [
        server.version(found),
        server.persistence(found),
        server.memory(found),
        server.fork(found),
        server.connections(found),
        server.replicas(found),
        server.functions(cell.store, found),
        access.access(cell.store, found),
        latency.remembered(cell.store, found),
        queues.depth(found),
        queues.stopped(found),
        queues.dead(found),
        queues.delayed(cell.store, found),
    ]
    assert [names(check) for check in checks] == [[]] * len(checks)


def test_a_server_away_from_its_memory_is_found_where_there_are_nodes(
    cell: Cell, tmp_path: Path
) -> None:
    found = facts(cell)
    pid, roots = found.number("process_id"), Roots(root=tmp_path)
    assert names(server.memory_node(found, Roots())) == []  # one node, or the server is at home
    first, *others = sorted(os.sched_getaffinity(pid))
    write_host(tmp_path, nodes=2, cores=4)
    lists = "sys/devices/system/node/node{}/cpulist"
    for node, cores in enumerate(([first], [*others, 63])):
        write(tmp_path, lists.format(node), ",".join(map(str, cores)))
    write(tmp_path, f"proc/{pid}/comm", "valkey-server")
    heap = "55d0c1a00000 default heap anon=100 dirty=100 N0={} N1={} kernelpagesize_kB=4"
    write(tmp_path, f"proc/{pid}/numa_maps", heap.format(20, 80))
    if others:
        [wanders] = server.memory_node(found, roots)
        assert "may run on cores" in wanders.seen
        assert "NUMAPolicy=bind, NUMAMask=" in wanders.remedy
    os.sched_setaffinity(pid, {first})
    try:
        [far] = server.memory_node(found, roots)
    finally:
        os.sched_setaffinity(pid, {first, *others})
    assert far.seen.startswith(f"80% of the memory of the server (process {pid}) is not on node 0")
    assert far.subject == "broker.memory_node"


def test_a_server_that_is_kept_on_a_node_is_to_have_half_of_that_nodes_memory(
    cell: Cell, tmp_path: Path
) -> None:
    write_host(tmp_path, nodes=2, cores=64, memory=16 << 30)  # all cores here are of its node 0
    found, roots = facts(cell), Roots(root=tmp_path)
    assert server.node_bytes(found, roots) is None  # its process does not show here
    write(tmp_path, f"proc/{found.number('process_id')}/comm", "valkey-server")
    assert server.node_bytes(found, roots) == 8 << 30
    [unlimited] = server.memory(told(found, maxmemory=0), node_bytes=8 << 30)
    assert "maxmemory 4096mb" in unlimited.remedy
    [too_much] = server.memory(told(found, maxmemory=6 << 30), node_bytes=8 << 30)
    assert too_much.seen == "maxmemory is 6144 MB of the node's 8192 MB"


def test_a_server_that_is_too_old_is_found(cell: Cell) -> None:
    for old in (
        {"server_name": "redis", "redis_version": "6.2.14"},
        {"server_name": "valkey", "valkey_version": "7.0.1"},
    ):
        [found] = server.version(told(facts(cell), **old))
        assert (found.severity, found.subject) == ("error", "broker.version")
        assert old["server_name"] in found.seen


def test_the_persistence_mode_is_named_with_what_it_may_lose(
    cell: Cell, changed: Callable[[str, str], None]
) -> None:
    changed("appendfsync", "everysec")
    [everysec] = server.persistence(facts(cell))
    assert (everysec.severity, everysec.subject) == ("note", "broker.persistence")
    assert everysec.seen.endswith("a crash may lose two seconds")
    changed("appendfsync", "no")
    assert names(server.persistence(facts(cell))) == ["warning broker.persistence"]
    changed("appendonly", "no")
    assert names(server.persistence(facts(cell))) == ["error broker.persistence"]
    assert names(server.persistence(facts(cell, env="test"))) == ["warning broker.persistence"]


def test_the_server_of_up_is_meant_as_it_is(
    cell: Cell, changed: Callable[[str, str], None]
) -> None:
    changed("appendfsync", "everysec")
    changed("maxmemory", "0")
    changed("latency-monitor-threshold", "0")
    found = facts(cell, env="test", broker__url=None)
    seen = [server.persistence(found), server.memory(found), latency.remembered(cell.store, found)]
    assert [names(check) for check in seen] == [[], [], []]
    changed("appendfsync", "no")
    found = facts(cell, env="test", broker__url=None)
    assert names(server.persistence(found)) == ["warning broker.persistence"]


@pytest.mark.parametrize(
    ("url", "client"),
    [
        ("agentq+unix:///run/a b.sock", "redis-cli -s '/run/a b.sock'"),
        ("agentq://:s@h:7000/0", "redis-cli -h h -p 7000 --askpass"),
        ("agentq+tls://ann:s@h/0?ssl_ca_certs=ca", "redis-cli -h h -p 6379 --tls --cacert ca --user ann --askpass"),
        ("agentq+sentinel://s1,s2/main", "redis-cli -h PRIMARY -p 6380"),
    ],
)  # fmt: skip
def test_a_remedy_reaches_the_server_that_was_looked_at(url: str, client: str) -> None:
    assert cli.client(parse(url), {"tcp_port": "6380"}) == client


def test_a_server_with_a_configuration_file_is_given_the_line_in_it(cell: Cell) -> None:
    found = told(facts(cell), config_file="/etc/redis/redis.conf")
    remedy = cli.setting(found, "appendfsync", "always")
    assert remedy.startswith("the line `appendfsync always` in /etc/redis/redis.conf and a restart")
    first, second = remedy.partition(" may: ")[2].split(" && ")
    assert first.removesuffix("CONFIG SET appendfsync always") == second.removesuffix(
        "CONFIG REWRITE"
    )


def test_data_that_can_not_be_written_is_found(cell: Cell) -> None:
    found = told(facts(cell), aof_last_write_status="err")
    assert names(server.persistence(found)) == ["error broker.persistence"]


def test_keys_that_may_be_thrown_away_are_found_and_the_remedy_is_a_line_to_paste(
    own: Server, cell: Cell, changed: Callable[[str, str], None]
) -> None:
    changed("maxmemory-policy", "allkeys-lru")
    [found] = server.memory(facts(cell))
    assert (found.severity, found.seen) == ("error", "maxmemory-policy is allkeys-lru")
    assert ran(own, found.remedy.partition(";")[0]) == ["OK"]
    assert own.client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_a_server_without_a_limit_or_near_it_is_found(
    cell: Cell, changed: Callable[[str, str], None]
) -> None:
    changed("maxmemory", "0")
    assert names(server.memory(facts(cell))) == ["warning broker.maxmemory"]
    assert names(server.memory(facts(cell, env="test"))) == ["note broker.maxmemory"]
    used = facts(cell).number("used_memory")
    changed("maxmemory", str(int(used * 1.4)))
    assert names(server.memory(facts(cell))) == ["warning broker.maxmemory"]
    changed("maxmemory", str(int(used * 1.1)))
    [full] = server.memory(facts(cell))
    assert (full.severity, full.subject) == ("error", "broker.maxmemory")
    assert "QueueFull" in full.why


def test_a_limit_that_leaves_no_room_for_a_rewrite_is_found(cell: Cell) -> None:
    found = facts(cell)
    total = found.number("maxmemory") * 5 // 4
    assert names(server.memory(told(found, total_system_memory=total))) == [
        "warning broker.maxmemory"
    ]


def test_a_fork_that_holds_the_server_up_is_found(cell: Cell) -> None:
    [found] = server.fork(told(facts(cell), latest_fork_usec=350_000))
    assert found.seen == "the last fork took 350 ms"


def test_connections_that_run_out_are_found(
    cell: Cell, changed: Callable[[str, str], None]
) -> None:
    there = facts(cell).number("connected_clients")
    changed("maxclients", str(there))
    assert names(server.connections(facts(cell))) == ["warning broker.connections"]


def test_a_missing_replica_is_found_by_what_is_asked_of_it(
    cell: Cell, changed: Callable[[str, str], None]
) -> None:
    assert names(server.replicas(facts(cell))) == ["warning broker.replicas"]
    wanted = facts(cell, broker__durable="replica")
    assert names(server.replicas(wanted)) == ["error broker.replicas"]
    changed("min-replicas-to-write", "1")
    assert names(server.replicas(facts(cell))) == [
        "warning broker.replicas",
        "error broker.replicas",
    ]


def test_a_replica_is_found_where_it_is_late_or_taken_for_the_primary(
    own: Server, cell: Cell
) -> None:
    late = Replica(address="h:1", online=True, behind=9_000, silent_s=60)
    found = facts(cell)
    broker = replace(found.cell.broker, replicas=(late,))
    silent = replace(found, cell=replace(found.cell, broker=broker))
    [one] = server.replicas(silent)
    assert "last heard 60 s ago, is 9,000 bytes behind" in one.seen
    own.client.replicaof("127.0.0.1", "1")  # nobody is there
    try:
        assert names(server.replicas(facts(cell))) == ["error broker.role"]
    finally:
        own.client.replicaof("no", "one")


def test_functions_that_are_missing_are_found_and_not_loaded(own: Server, cell: Cell) -> None:
    own.client.function_flush()
    found = facts(cell)
    assert names(server.functions(cell.store, found)) == ["error broker.functions"]
    assert names(server.functions(cell.store, facts(cell, env="test"))) == [
        "warning broker.functions"
    ]
    assert own.client.function_list() == []


def test_functions_of_a_working_copy_are_noted(own: Server, cell: Cell) -> None:
    edited = library.source().replace(library.digest(), "0123456789abcdef", 1)
    own.client.function_load(edited, replace=True)
    assert names(server.functions(cell.store, facts(cell))) == ["note broker.functions"]


def test_a_server_that_is_open_to_all_is_found_in_production(cell: Cell) -> None:
    assert names(access.access(cell.store, facts(cell))) == ["warning broker.acl"]


def test_a_role_that_lacks_what_this_build_needs_is_found(own: Server, cell: Cell) -> None:
    found = facts(cell, env="test")
    try:
        for role in Role:
            given = rules(role, cell="main")
            own.client.execute_command("ACL", "SETUSER", f"agentq-{role}", "on", ">s", *given)
        assert names(access.access(cell.store, found)) == []
        own.client.execute_command("ACL", "SETUSER", "agentq-worker", "-zscore", "resetkeys")
        [one] = access.access(cell.store, found)
        assert one.seen == "user agentq-worker lacks ~{aq:main}:* +zscore"
        assert ran(own, one.remedy.partition(" && ")[0]) == ["OK"]
        assert names(access.access(cell.store, found)) == []
    finally:
        own.client.execute_command("ACL", "DELUSER", *(f"agentq-{role}" for role in Role))


def test_a_server_that_replays_its_file_as_a_user_without_rights_is_found(own: Server) -> None:
    own.client.execute_command("ACL", "SETUSER", "all", "on", ">s", "~*", "&*", "+@all")
    asking = Cell(own.url.replace("://", "://all:s@"))
    acl = partial(asking.store.command, "ACL")
    try:
        acl("SETUSER", "default", "off", "-@all", "resetkeys")
        found = told(facts(asking, env="test"), aof_enabled=1)
        [one] = access.access(asking.store, found)
        assert (one.severity, one.subject) == ("error", "broker.acl")
        _, _, remedy = one.remedy.partition(" ACL ")
        acl(*shlex.split(remedy.partition(" && ")[0]))
        assert names(access.access(asking.store, found)) == []
        assert b"off" in acl("GETUSER", "default")[b"flags"]
    finally:
        acl("SETUSER", "default", "on", "nopass", "~*", "&*", "+@all")
        asking.store.close()
        own.client.execute_command("ACL", "DELUSER", "all")


@pytest.mark.usefixtures("cell")
def test_a_user_that_may_not_ask_is_told_what_was_not_checked(own: Server) -> None:
    given = rules(Role.WORKER, cell="main")
    own.client.execute_command("ACL", "SETUSER", "small", "on", ">s", *given)
    try:
        small = Cell(own.url.replace("://", "://small:s@"))
        found = facts(small, env="test")
        checks = [
            server.persistence(found),
            access.access(small.store, found),
            latency.remembered(small.store, found),
            disk.disk(found, Roots()),
        ]
        seen = [one for check in checks for one in check]
        assert [f"{one.severity} {one.subject}" for one in seen] == [
            "note broker.persistence", "note broker.acl", "note broker.slowlog",
            "note broker.latency", "note disk.device",
        ]  # fmt: skip
        assert all(one.seen.startswith("not checked:") for one in seen)
        small.store.close()
    finally:
        own.client.execute_command("ACL", "DELUSER", "small")


def test_the_round_trip_is_measured_and_judged(cell: Cell) -> None:
    took = latency.measure(cell.store)
    assert len(took) == latency.PINGS
    assert list(latency.round_trip([0.1] * 200)) == []
    [slow] = latency.round_trip([4.0] * 200)
    assert slow.seen == "PING takes 4.00 ms (p50), 4.00 ms (p99)"
    [spiky] = latency.round_trip([0.1] * 190 + [80.0] * 10)
    assert spiky.subject == "broker.latency"


def test_calls_that_held_the_server_up_are_found(own: Server, cell: Cell) -> None:
    own.client.eval("for i = 1, 6e7 do end", 0)
    found = {one.subject: one for one in latency.remembered(cell.store, facts(cell))}
    assert set(found) == {"broker.slowlog", "broker.latency"}
    assert ": EVAL for i" in found["broker.slowlog"].seen
    assert "command held the server up" in found["broker.latency"].seen


def test_a_latency_monitor_that_is_off_is_noted(
    cell: Cell, changed: Callable[[str, str], None]
) -> None:
    changed("latency-monitor-threshold", "0")
    assert names(latency.remembered(cell.store, facts(cell))) == ["note broker.latency"]


def test_the_servers_own_folder_is_measured(cell: Cell) -> None:
    found = facts(cell)
    assert found.folder is not None
    before = sorted(found.folder.iterdir())
    seen = [one.subject for one in disk.disk(found, Roots()) if one.seen.startswith("not checked")]
    assert "disk.fsync" not in seen
    assert sorted(found.folder.iterdir()) == before
    remote = replace(found, local=False)
    assert [one.seen for one in disk.disk(remote, Roots())] == [
        "not checked: it is on another machine"
    ]
