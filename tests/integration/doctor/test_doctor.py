"""`agentq doctor` as a whole: what it sends, leaves alone and answers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from agentq.cli.main import app as command_line
from agentq.ops.doctor import diagnose, is_well
from agentq.ops.doctor.finding import Finding
from agentq.ops.doctor.roots import Roots
from tests.support.cell import Cell, message
from tests.support.doctor import reporting
from tests.support.redis_server import Server
from tests.unit.host.machines import write_host

READS = {
    "acl|cat", "acl|getuser", "client|setinfo", "config|get", "fcall", "hello", "hget", "hgetall", "hlen",
    "info", "latency|latest", "llen", "memory|usage", "ping", "select", "slowlog|get", "smembers", "time", "xinfo|groups",
    "xlen", "xrange", "zcard", "zrange",
}  # fmt: skip
"""fcall: of `aq1_about`, which reads the clock; that nothing was written is looked at as well."""


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
        not one["seen"].startswith("not checked")
        or one["subject"].startswith(("machine", "disk", "interrupts", "workers.limits"))
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
    found = [one["subject"] for one in orjson.loads(done.output)["findings"]]
    assert "settings.log" in found
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in config.iterdir()} == before


def test_a_broker_that_is_away_stops_no_other_check(tmp_path: Path) -> None:
    write_host(tmp_path)
    os.environ["AGENTQ_BROKER__URL"] = f"agentq+unix://{tmp_path}/nobody.sock"
    try:
        found = {one.subject: one for one in diagnose(None, roots=Roots(root=tmp_path))}
    finally:
        del os.environ["AGENTQ_BROKER__URL"]
    assert found["broker.reachable"].severity == "error"
    assert f"redis-cli -s {tmp_path}/nobody.sock PING tries" in found["broker.reachable"].remedy
    assert found["broker"].seen.startswith("not checked: the server, its disk, workers and queues")
    assert found["machine.governor"].severity == "note"


def test_a_check_that_breaks_is_said_and_stops_no_other(tmp_path: Path) -> None:
    write_host(tmp_path)
    found = {one.subject: one for one in diagnose(None, roots=Roots(root=tmp_path))}
    for name in ("machine.open_files", "machine.core_load"):
        assert found[name].seen.startswith("not checked: ")


def test_settings_that_are_refused_are_findings(own: Server) -> None:
    done = doctor(own.url, "--json", AGENTQ_WORKR__SLOTS="3", AGENTQ_WORKER__LEASE="soon")
    assert done.exit_code == 1
    refused = [
        one for one in orjson.loads(done.output)["findings"] if one["subject"] == "settings.refused"
    ]
    assert {one["severity"] for one in refused} == {"error"}
    assert "did you mean AGENTQ_WORKER__SLOTS?" in " ".join(one["seen"] for one in refused)


def test_an_app_that_can_not_be_imported_is_a_finding_beside_all_others(
    own: Server, cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_shop.py").write_text("import no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    cell.enqueue(message("m"))
    done = doctor(own.url, "--json", "-A", "broken_shop:aq")
    found = {one["subject"]: one for one in orjson.loads(done.output)["findings"]}
    assert "no_such_module" in found["settings.app"]["seen"]
    assert found["settings.app"]["severity"] == "error"
    assert "no worker" in found["workers.pool"]["seen"]
    assert "broker" not in found
    assert done.exit_code == 1


def test_a_stock_broker_is_answered_by_what_it_does_not_promise() -> None:
    done = doctor("redis://:secret@127.0.0.1:1/0")
    assert done.exit_code == 1
    assert done.output.count("does not hold:") == 8
    assert "secret" not in done.output


def test_the_exit_code_is_that_of_the_worst_finding() -> None:
    def one(severity: Any) -> Finding:
        return Finding(severity=severity, subject="n", seen="", why="", remedy="")

    assert is_well([])
    assert is_well([one("note")])
    assert not is_well([one("note"), one("warning")])
    assert not is_well([one("error")])
