"""`agentq doctor` on real servers: what is wrong with them is provoked on the test's own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from agentq.broker.build import build
from agentq.cli.main import app as command_line
from agentq.ops.acl import Role, rules
from agentq.ops.doctor import access, diagnose, disk, is_well, latency, queues, server, workers
from agentq.ops.doctor.facts import Facts, read_facts
from agentq.ops.doctor.finding import Finding
from agentq.ops.doctor.roots import Roots
from agentq.settings import Settings, load_settings
from agentq.store import calls
from agentq.store.replication import Replica
from tests.support.cell import Cell, message
from tests.support.redis_server import Server, private_server

HOST = socket.gethostname()
READS = {
    "acl|cat", "acl|getuser", "client|setinfo", "config|get", "fcall", "hello", "hget", "hgetall", "hlen",
    "info", "latency|latest", "llen", "memory|usage", "ping", "select", "slowlog|get", "smembers", "time", "xinfo|groups",
    "xlen", "xrange", "zcard", "zrange",
}  # fmt: skip
"""fcall: of `aq1_about`, which reads the clock; that nothing was written is looked at as well."""


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server of these tests, as production would have it."""
    with private_server(appendfsync="always") as found:
        found.client.config_set("maxmemory", "256mb")
        found.client.config_set("latency-monitor-threshold", "100")
        yield found


@pytest.fixture
def cell(own: Server) -> Cell:
    own.flush()
    found = Cell(own.url)
    found.store.ensure_functions()
    own.client.slowlog_reset()
    own.client.latency_reset()
    return found


@pytest.fixture
def changed(own: Server) -> Iterator[Callable[[str, str], None]]:
    """Set what the server is configured to, until the end of the test."""
    before: dict[str, str] = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, own.client.config_get(name)[name])
        own.client.config_set(name, value)

    yield change
    for name, value in before.items():
        own.client.config_set(name, value)


def settings(env: str = "production", **overrides: object) -> Settings:
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(env=env, overrides=named, environ={})


def facts(cell: Cell, **overrides: object) -> Facts:
    return read_facts(cell.store, settings(**overrides))  # type: ignore[arg-type]  # env is a str


def told(found: Facts, **info: object) -> Facts:
    """Return facts as a server would give them that says this of itself."""
    return replace(found, info={**found.info, **{key: str(value) for key, value in info.items()}})


def names(findings: Iterable[Finding]) -> list[str]:
    return [f"{one.severity} {one.name}" for one in findings]


def reporting(cell: Cell, name: str, **report: object) -> None:
    """Take a lease for a worker that says this of itself."""
    said = {"pools": ["shared"], "pid": 1, "host": HOST, "build": build(), **report}
    call = calls.renew(
        cell.prefix,
        f"{name}#1",
        60_000,
        first=True,
        report=orjson.dumps({"hostname": name, **said}),
    )
    cell.store.call(call)


# -- the server -----------------------------------------------------------------------------------


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


def test_a_server_that_is_too_old_is_found(cell: Cell) -> None:
    for old in (
        {"server_name": "redis", "redis_version": "6.2.14"},
        {"server_name": "valkey", "valkey_version": "7.0.1"},
    ):
        [found] = server.version(told(facts(cell), **old))
        assert (found.severity, found.name) == ("error", "broker.version")
        assert old["server_name"] in found.seen


def test_the_persistence_mode_is_named_with_what_it_may_lose(
    cell: Cell, changed: Callable[[str, str], None]
) -> None:
    changed("appendfsync", "everysec")
    [everysec] = server.persistence(facts(cell))
    assert (everysec.severity, everysec.name) == ("note", "broker.persistence")
    assert everysec.seen.endswith("a crash may lose two seconds")
    changed("appendfsync", "no")
    assert names(server.persistence(facts(cell))) == ["warning broker.persistence"]
    changed("appendonly", "no")
    assert names(server.persistence(facts(cell))) == ["error broker.persistence"]
    assert names(server.persistence(facts(cell, env="test"))) == ["warning broker.persistence"]


def test_data_that_can_not_be_written_is_found(cell: Cell) -> None:
    found = told(facts(cell), aof_last_write_status="err")
    assert names(server.persistence(found)) == ["error broker.persistence"]


def test_keys_that_may_be_thrown_away_are_found(
    cell: Cell, changed: Callable[[str, str], None]
) -> None:
    changed("maxmemory-policy", "allkeys-lru")
    [found] = server.memory(facts(cell))
    assert (found.severity, found.seen) == ("error", "maxmemory-policy is allkeys-lru")
    assert found.fix.startswith("redis-cli CONFIG SET maxmemory-policy noeviction")


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
    assert (full.severity, full.name) == ("error", "broker.maxmemory")
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


def test_a_missing_replica_is_found_by_what_is_asked_of_it(cell: Cell) -> None:
    assert names(server.replicas(facts(cell))) == ["warning broker.replicas"]
    wanted = facts(cell, broker__durable="replica")
    assert names(server.replicas(wanted)) == ["error broker.replicas"]


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
    from agentq.store import library

    edited = library.source().replace(library.digest(), "0123456789abcdef", 1)
    own.client.function_load(edited, replace=True)
    assert names(server.functions(cell.store, facts(cell))) == ["note broker.functions"]


# -- who may do what ------------------------------------------------------------------------------


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
        assert one.fix.startswith("redis-cli ACL SETUSER agentq-worker ~{aq:main}:* +zscore")
    finally:
        own.client.execute_command("ACL", "DELUSER", *(f"agentq-{role}" for role in Role))


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
        assert [f"{one.severity} {one.name}" for one in seen] == [
            "note broker.persistence", "note broker.acl", "note broker.slowlog",
            "note broker.latency", "note disk.device",
        ]  # fmt: skip
        assert all(one.seen.startswith("not checked:") for one in seen)
        small.store.close()
    finally:
        own.client.execute_command("ACL", "DELUSER", "small")


# -- how fast it is -------------------------------------------------------------------------------


def test_the_round_trip_is_measured_and_judged(cell: Cell) -> None:
    took = latency.measure(cell.store)
    assert len(took) == latency.PINGS
    assert list(latency.round_trip([0.1] * 200)) == []
    [slow] = latency.round_trip([4.0] * 200)
    assert slow.seen == "PING takes 4.00 ms (p50), 4.00 ms (p99)"
    [spiky] = latency.round_trip([0.1] * 190 + [80.0] * 10)
    assert spiky.name == "broker.latency"


def test_calls_that_held_the_server_up_are_found(own: Server, cell: Cell) -> None:
    own.client.eval("for i = 1, 6e7 do end", 0)
    found = {one.name: one for one in latency.remembered(cell.store, facts(cell))}
    assert set(found) == {"broker.slowlog", "broker.latency"}
    assert ": EVAL for i" in found["broker.slowlog"].seen
    assert "command held the server up" in found["broker.latency"].seen


def test_a_latency_monitor_that_is_off_is_noted(
    cell: Cell, changed: Callable[[str, str], None]
) -> None:
    changed("latency-monitor-threshold", "0")
    assert names(latency.remembered(cell.store, facts(cell))) == ["note broker.latency"]


# -- workers and queues ---------------------------------------------------------------------------


def test_workers_that_are_well_have_no_finding(cell: Cell) -> None:
    reporting(cell, "critical-0", pools=["critical"], cores=[0], allocator="jemalloc 5.3.0")
    reporting(cell, "shared-0", pools=["shared"], cores=[1], allocator="jemalloc 5.3.0")
    found = facts(cell)
    checks = [
        workers.alive(found),
        workers.builds(found),
        workers.clocks(found),
        workers.allocators(found),
        workers.pinning(found, cores=2),
        workers.descriptors(found, Roots(), host="another"),
    ]
    assert [names(check) for check in checks] == [[]] * len(checks)


def test_a_pool_without_a_worker_is_found_and_is_an_error_where_work_waits(cell: Cell) -> None:
    assert names(workers.alive(facts(cell))) == ["note workers.pool"] * 2
    reporting(cell, "shared-0")
    [critical] = workers.alive(facts(cell))
    assert (critical.severity, critical.seen) == ("warning", "no worker serves pool critical")
    cell.enqueue(message("m", pool="critical"))
    [waiting] = workers.alive(facts(cell))
    assert (waiting.severity, waiting.name) == ("error", "workers.pool")


def test_a_lease_that_ran_out_is_found(cell: Cell) -> None:
    reporting(cell, "critical-0", pools=["critical"])
    reporting(cell, "shared-0", running=3)
    cell.expire_lease("shared-0#1")
    found = {one.name: one for one in workers.alive(facts(cell))}
    assert set(found) == {"workers.lease", "workers.pool"}
    assert f"shared-0 (process 1 on {HOST}) lost its lease" in found["workers.lease"].seen
    assert "with 3 steps" in found["workers.lease"].seen


def test_mixed_builds_are_found(cell: Cell) -> None:
    reporting(cell, "new")
    assert names(workers.builds(facts(cell))) == []
    reporting(cell, "old", build="0.0.1 (functions 1, 0)")
    [found] = workers.builds(facts(cell))
    assert "0.0.1 (functions 1, 0): old" in found.seen


def test_a_clock_that_is_off_is_found(cell: Cell) -> None:
    reporting(cell, "w", skew_ms=-9_000)
    [found] = workers.clocks(facts(cell))
    assert found.seen == "the clock of w is 9 s behind the broker's"


def test_results_that_blob_storage_does_not_take_are_found(cell: Cell) -> None:
    reporting(cell, "well")
    assert names(workers.unwritten(facts(cell))) == []
    reporting(cell, "w", unwritten=2)
    [found] = workers.unwritten(facts(cell))
    assert found.seen == "2 steps of w have ended and wait for blob storage"


def test_another_allocator_than_the_pools_is_found(cell: Cell) -> None:
    reporting(cell, "w", allocator="glibc 2.36")
    [found] = workers.allocators(facts(cell))
    assert found.seen == "w runs on glibc 2.36, its pool's setting is jemalloc"
    reporting(cell, "w", allocator="")
    assert names(workers.allocators(facts(cell))) == ["note workers.allocator"]


def test_a_critical_worker_that_shares_its_core_is_found_where_there_are_enough(
    cell: Cell,
) -> None:
    reporting(cell, "critical-0", pools=["critical"], cores=[0, 1])
    reporting(cell, "shared-0", cores=[1])
    reporting(cell, "elsewhere-0", cores=[0], host="other")
    [found] = workers.pinning(facts(cell), cores=2)
    assert found.seen == "critical-0 and shared-0 share cores 1"
    assert names(workers.pinning(facts(cell), cores=1)) == []


def test_files_that_a_worker_runs_out_of_are_found(cell: Cell, tmp_path: Path) -> None:
    reporting(cell, "w", pid=42)
    limits = tmp_path / "42/limits"
    (tmp_path / "42/fd").mkdir(parents=True)
    limits.write_text("Max open files            64                   20000   files\n")
    for number in range(55):
        (tmp_path / f"42/fd/{number}").touch()
    roots = Roots(proc=tmp_path)
    [found] = workers.descriptors(facts(cell), roots, host=HOST)
    assert found.seen == "w has 55 of 64 files and sockets open"
    limits.write_text("Max open files            20000                20000   files\n")
    assert names(workers.descriptors(facts(cell), roots, host=HOST)) == []


def test_a_queue_that_fills_is_found(cell: Cell) -> None:
    cell.enqueue(*(message(f"m{number}", pool="shared") for number in range(9)))
    assert names(queues.depth(facts(cell, broker__max_length=10))) == ["warning queues.depth"]
    [full] = queues.depth(facts(cell, broker__max_length=9))
    assert (full.severity, full.seen) == ("error", "9 of 9 messages wait in shared:normal")
    assert names(queues.depth(facts(cell, broker__max_length=100))) == []


def test_a_queue_of_large_messages_is_found(cell: Cell) -> None:
    large = message("m", pool="shared")._replace(body=b"x" * 50_000)
    cell.enqueue(*(large._replace(id=f"m{number}") for number in range(9)))
    assert names(queues.size(cell.store, facts(cell))) == []
    [found] = queues.size(cell.store, facts(cell, broker__max_bytes=500_000))
    assert (found.severity, found.name) == ("warning", "queues.bytes")
    assert found.seen.endswith("of 0.5 MB")


def test_work_that_has_waited_long_is_found(cell: Cell) -> None:
    cell.enqueue(message("m"))
    found = facts(cell)
    [queue] = found.cell.queues
    old = replace(found.cell, queues=(replace(queue, oldest_ms=900_000),))
    [one] = queues.depth(replace(found, cell=old))
    assert one.seen == "the first of 1 in p:normal has waited for 15 minutes"


def test_pauses_and_parked_work_are_found(cell: Cell) -> None:
    cell.store.call(calls.pause(cell.prefix, "step:shop.pay"))
    cell.enqueue(message("m"))
    cell.renew("w")
    [handed] = cell.fetch("w")
    cell.park(handed, "task shop.new", after_ms=60_000)
    paused, parked = queues.stopped(facts(cell))
    assert (paused.severity, paused.fix) == ("note", "agentq resume step shop.pay")
    assert (parked.severity, parked.name) == ("warning", "queues.parked")
    assert "1 wait for task shop.new" in parked.seen
    hours_ago = cell.now_ms() - 7_200_000
    cell.redis("HSET", cell.keys.paused(), "step:shop.pay", hours_ago)
    [forgotten, _] = queues.stopped(facts(cell))
    assert forgotten.severity == "warning"


def test_retries_that_wait_for_their_budget_are_noted(cell: Cell) -> None:
    found = facts(cell)
    assert names(queues.retries(found)) == []
    waiting = replace(found, cell=replace(found.cell, retries={"shared": 7}))
    [one] = queues.retries(waiting)
    assert (one.severity, one.seen) == ("note", "7 retries of pool shared wait for its budget")


def test_dead_letters_are_noted_and_warned_of_when_their_room_ends(cell: Cell) -> None:
    cell.bury(9)
    assert names(queues.dead(facts(cell))) == ["note queues.dead"]
    assert names(queues.dead(facts(cell, dead__max_number=10))) == ["warning queues.dead"]


def test_delayed_work_that_nobody_brings_back_is_found(cell: Cell) -> None:
    cell.enqueue(message("m", due=cell.now_ms() + 3_600_000))
    assert names(queues.delayed(cell.store, facts(cell))) == []
    assert names(queues.delayed(cell.store, facts(cell, broker__max_length=1))) == [
        "warning queues.delayed"
    ]
    [(member, _)] = cell.store.client.zscan_iter(cell.keys.delayed())
    cell.redis("ZADD", cell.keys.delayed(), cell.now_ms() - 120_000, member)
    [found] = queues.delayed(cell.store, facts(cell))
    assert found.seen.startswith("delayed work is overdue for ")


def test_the_servers_own_folder_is_looked_at(cell: Cell) -> None:
    found = facts(cell)
    assert found.folder is not None
    assert "disk.fsync" not in [one.name for one in disk.disk(replace(found, config={
        **found.config, "appendfsync": "no"}), Roots()) if one.severity == "note"]  # fmt: skip


# -- as a whole -----------------------------------------------------------------------------------


def doctor(url: str, *options: str, **variables: str) -> Any:
    environ = {"AGENTQ_BROKER__URL": url, "AGENTQ_ENV": "test", **variables}
    return CliRunner(env=environ).invoke(command_line, ["doctor", *options])


def test_doctor_sends_nothing_but_reads_and_changes_nothing(own: Server, cell: Cell) -> None:
    cell.enqueue(*(message(f"m{number}") for number in range(3)), run="r")
    reporting(cell, "w", allocator="jemalloc 5.3.0")
    before = own.client.info("persistence")["rdb_changes_since_last_save"]
    own.client.config_resetstat()
    done = doctor(own.url, "--json")
    # MONITOR would not show what is for admins: CONFIG, ACL, SLOWLOG.
    sent = {name.removeprefix("cmdstat_") for name in own.client.info("commandstats")}
    assert all(
        not one["seen"].startswith("not checked") or one["name"].startswith(("machine", "disk"))
        for one in orjson.loads(done.output)["findings"]
    )
    assert sent - {"config|resetstat"} <= READS
    assert own.client.info("persistence")["rdb_changes_since_last_save"] == before


def test_doctor_leaves_the_settings_as_they_are(own: Server, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "default.toml").write_text('[log]\nlevel = "DEBUG"\n')
    (config / "production.toml").touch()
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in config.iterdir()}
    done = doctor(own.url, "--json", AGENTQ_CONFIG=str(config), AGENTQ_ENV="production")
    found = [one["name"] for one in orjson.loads(done.output)["findings"]]
    assert "settings.log" in found
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in config.iterdir()} == before


def test_a_broker_that_is_away_stops_no_other_check(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    os.environ["AGENTQ_BROKER__URL"] = f"agentq+unix://{tmp_path}/nobody.sock"
    try:
        found = {one.name: one for one in diagnose(None, roots=Roots(sys=tmp_path / "sys"))}
    finally:
        del os.environ["AGENTQ_BROKER__URL"]
    assert found["broker.reachable"].severity == "error"
    assert found["broker"].seen.startswith("not checked: the server, its disk, workers and queues")
    assert found["machine.governor"].severity == "note"


def test_a_check_that_breaks_is_said_and_stops_no_other(tmp_path: Path) -> None:
    found = {one.name: one for one in diagnose(None, roots=Roots(proc=tmp_path, sys=tmp_path))}
    for name in ("machine.open_files", "machine.somaxconn", "machine.max_map_count"):
        assert found[name].seen.startswith("not checked: FileNotFoundError")


def test_settings_that_are_refused_are_findings(own: Server) -> None:
    done = doctor(own.url, "--json", AGENTQ_WORKR__SLOTS="3", AGENTQ_WORKER__LEASE="soon")
    assert done.exit_code == 1
    refused = [
        one for one in orjson.loads(done.output)["findings"] if one["name"] == "settings.refused"
    ]
    assert {one["severity"] for one in refused} == {"error"}
    assert "did you mean AGENTQ_WORKER__SLOTS?" in " ".join(one["seen"] for one in refused)


def test_a_stock_broker_is_answered_by_what_it_does_not_promise() -> None:
    done = doctor("redis://:secret@127.0.0.1:1/0")
    assert done.exit_code == 1
    assert done.output.count("does not hold:") == 8
    assert "secret" not in done.output


def test_the_exit_code_is_that_of_the_worst_finding() -> None:
    def one(severity: Any) -> Finding:
        return Finding(severity=severity, name="n", seen="", why="", fix="")

    assert is_well([])
    assert is_well([one("note")])
    assert not is_well([one("note"), one("warning")])
    assert not is_well([one("error")])
