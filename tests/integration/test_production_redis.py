"""`deploy/redis/`: broker, worker, dashboard and admin on a server that runs with exactly these files."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import chord
from redis.backoff import NoBackoff
from redis.retry import Retry
from typer.testing import CliRunner

from agentq.cli.main import app as command_line
from agentq.ops.acl import Role, lines
from agentq.store.calls import cancel
from tests.support.ledger import Ledger
from tests.support.production import FILES, Production, production_server
from tests.support.running import BOTH_POOLS, running
from tests.support.tls import signed, tls_program
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT

APP = "tests.support.apps.both"
PREFIX = "{aq:main}:"


@pytest.fixture(params=["tls", "socket"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Production]:
    """Over TLS on a build that has it, and by the socket on this session's server."""
    own, program = None, None
    if request.param == "tls":
        program = tls_program()
        own = signed(tmp_path, "own", alternative="IP:127.0.0.1")
    with production_server(own=own, program=program) as started:
        yield started


@pytest.fixture
def by_socket() -> Iterator[Production]:
    with production_server() as started:
        yield started


def agentq(server: Production, role: Role, *arguments: str) -> str:
    """Run a command as *role*; return what it printed."""
    runner = CliRunner(env={"AGENTQ_BROKER__URL": server.url(role)})
    done = runner.invoke(command_line, list(arguments))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def pages(server: Production, *paths: str) -> list[str]:
    """Run the dashboard with its role, and return what it shows there."""
    own = [sys.executable, "-m", "agentq", "dashboard", "-A", f"{APP}:aq", "--port", "0"]
    env = {**os.environ, "AGENTQ_BROKER__URL": server.url(Role.DASHBOARD)}
    env["FLOWER_UNAUTHENTICATED_API"] = "true"
    with subprocess.Popen(own, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address = process.stdout.readline().strip()

            def get(path: str) -> str:
                with urllib.request.urlopen(address + path, timeout=10) as answer:  # noqa: S310
                    return str(answer.read().decode())

            wait_until(lambda: "w@test" in get("workers?json=1"), "its events are heard")
            wait_until(lambda: "max-concurrency" in get("api/workers?refresh=1"), "it answers")
            return [get(path) for path in paths]
        finally:
            process.kill()


@pytest.mark.timeout(90)
def test_a_run_goes_through_and_each_role_has_what_it_needs(
    server: Production, ledger: Ledger
) -> None:
    assert "loaded" in agentq(server, Role.ADMIN, "broker", "init")
    with running(APP, server.url(Role.WORKER), ledger) as working:
        working.worker(options=(*BOTH_POOLS, "-E"))
        with running(APP, server.url(Role.PRODUCER), ledger) as producing:
            app = producing.app
            run = app.doubled.submit(20)
            assert run.result(timeout=20) == 380
            assert app.add.apply_async((1, 2), countdown=0.1).get(timeout=20) == 3
            assert chord([app.add.s(3, 3)], app.total.s()).apply_async().get(timeout=20) == 6
            app.aq.store.close()
        page, queues = pages(server, "agentq", "broker")
        assert "w@test" in page
        assert "critical:normal" in queues
        for looks in (Role.DASHBOARD, Role.ADMIN):
            assert "w@test" in agentq(server, looks, "status")
            assert "done" in agentq(server, looks, "status", run.id)
            for follow in ((), ("--follow",)):
                assert "done" in agentq(server, looks, "events", run.id, *follow)
            assert "done" in agentq(server, looks, "why", run.id)
        assert "fsync every second" in agentq(server, Role.ADMIN, "status")
        for kind in ("pause", "resume"):
            agentq(server, Role.ADMIN, kind, "pool", "shared")
        agentq(server, Role.ADMIN, "dead", "list")
    # How the file is synced is asked for `status`, which says so where it is not told.
    assert server.refused() == ["agentq-dashboard toplevel config|get"]


def test_what_was_accepted_is_there_after_a_restart(by_socket: Production, ledger: Ledger) -> None:
    agentq(by_socket, Role.ADMIN, "broker", "init")
    with running(APP, by_socket.url(Role.WORKER), ledger) as working:
        run = working.app.doubled.submit(20)
        sent = working.app.add.apply_async((1, 2), countdown=0.1)
        for looks in (Role.PRODUCER, Role.DASHBOARD, Role.ADMIN):
            said = agentq(by_socket, looks, "why", run.id)
            assert "waits in queue critical:normal, place 1" in said, looks
        by_socket.process.stop()
        by_socket.process.start()
        assert "NOPERM" not in by_socket.process.log()
        working.worker(options=BOTH_POOLS)
        assert run.result(timeout=20) == 380
        assert sent.get(timeout=20) == 3


def test_nobody_gets_in_without_a_password(by_socket: Production) -> None:
    for login in ({}, {"username": "default"}, {"username": "agentq-admin", "password": "x"}):
        with pytest.raises(redis.exceptions.AuthenticationError):
            link(by_socket, **login).ping()


def call(connection: redis.Redis, *command: object) -> object:
    return connection.execute_command(*command)


NEVER = (
    "EVAL 1 0", "SCRIPT LOAD x", "FUNCTION FLUSH", "FUNCTION LOAD x", "CONFIG SET maxmemory 1", "KEYS *",
    "SCAN 0", "FLUSHALL", "FLUSHDB", "SHUTDOWN", "ACL LIST", "ACL SETUSER x", "MONITOR",
    "REPLICAOF NO ONE", "SAVE", "CLIENT KILL TYPE normal", "GET other", "SET {aq:other}:x 1",
    "SWAPDB 0 1", "MIGRATE h 1 k 0 1",
)  # fmt: skip
"""What no role may; the admin may load functions and ask, but not set."""
A_WORKERS = (
    "XREADGROUP GROUP w me STREAMS {aq:main}:s:shared:normal >",
    "XACK {aq:main}:dead w 1-1",
)
CONTROL = "PUBLISH {aq:main}:/0.celery.pidbox shutdown"
REFUSED = {
    Role.PRODUCER: (*NEVER, *A_WORKERS, CONTROL, "CONFIG GET dir", "CLIENT LIST",
                    *(f"FCALL aq1_{name} 1 {PREFIX}" for name in
                      ("fetch", "renew", "reap", "pause", "purge", "drop", "replay"))),
    Role.WORKER: (*NEVER, "CONFIG GET dir", "CLIENT LIST", "FUNCTION LIST"),
    Role.DASHBOARD: (*NEVER, *A_WORKERS, "CONFIG GET dir", "SET {aq:main}:x 1", "DEL {aq:main}:x",
                     "XADD {aq:main}:s:shared:normal * a b",
                     *(f"FCALL aq1_{name} 1 {PREFIX}" for name in
                       ("enqueue", "cancel", "complete", "fetch", "pause", "drop"))),
    Role.ADMIN: tuple(one for one in NEVER if not one.startswith("FUNCTION")),
}  # fmt: skip


def test_each_role_is_refused_what_it_may_not(by_socket: Production) -> None:
    for role, commands in REFUSED.items():
        with by_socket.connection(role) as connection:
            for command in commands:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    call(connection, *command.split())


def test_what_a_stolen_producers_password_is_good_for_is_what_the_page_says(
    by_socket: Production, ledger: Ledger
) -> None:
    """Keeps `deploy/redis/README.md` honest: what it says can still be done, can."""
    agentq(by_socket, Role.ADMIN, "broker", "init")
    with running(APP, by_socket.url(Role.PRODUCER), ledger) as victim:
        run = victim.app.doubled.submit(3)
        victim.app.aq.store.close()
    runs, record, queue = f"{PREFIX}runs", f"{PREFIX}run:{run.id}", f"{PREFIX}s:critical:normal"
    with by_socket.connection(Role.PRODUCER) as thief:
        assert call(thief, "ZRANGE", runs, 0, -1) == [run.id]  # it sees every run
        assert "doubled" in str(call(thief, "HGET", record, "record"))  # reads what is in it
        assert len(list(thief.xrange(queue))) == 1
        call(thief, *cancel(PREFIX, run.id, 60_000))  # ends it
        assert call(thief, "HGET", record, "state") == "cancelled"
        call(thief, "XADD", queue, "*", "i", "x")  # sends what it likes, past every limit
        assert call(thief, "DEL", queue) == 1  # destroys what waits


def test_the_files_are_what_the_command_prints() -> None:
    runner = CliRunner(env={"AGENTQ_BROKER__URL": "agentq://127.0.0.1:6379/0"})
    printed = runner.invoke(command_line, ["broker", "acl"]).output
    assert printed == (FILES / "users.acl").read_text()
    assert printed.splitlines() == lines(cell="main")


def test_passwords_are_made_once_and_the_server_knows_their_hashes(
    by_socket: Production, tmp_path: Path
) -> None:
    kept, asked = tmp_path / "passwords", ("broker", "acl", "--passwords")
    users = agentq(by_socket, Role.ADMIN, *asked, str(kept))
    assert kept.stat().st_mode & 0o777 == 0o600
    assert agentq(by_socket, Role.ADMIN, *asked, str(kept)) == users  # as after an upgrade
    (by_socket.folder / "users.acl").write_text(users)
    by_socket.process.kill()
    by_socket.process.start(ready=False)
    for line in kept.read_text().splitlines():
        name, password = line.split()
        assert password not in users
        own = link(by_socket, username=name, password=password)
        wait_until(lambda own=own: answers(own), f"{name} gets in")  # type: ignore[misc]


def link(server: Production, **login: str) -> redis.Redis:
    path, once = str(server.socket), Retry(NoBackoff(), 0)
    return redis.Redis(unix_socket_path=path, retry=once, **login)  # type: ignore[arg-type]


def answers(link: redis.Redis) -> bool:
    try:
        return bool(link.ping())
    except redis.exceptions.AuthenticationError:
        raise
    except redis.exceptions.ConnectionError:
        return False  # it starts


def test_every_setting_follows_a_reason() -> None:
    before = ""
    for line in (FILES / "agentq.conf").read_text().splitlines():
        if line and not line.startswith("#"):
            assert before, f"{line}: why?"  # a reason, or a setting that shares it
        before = line
