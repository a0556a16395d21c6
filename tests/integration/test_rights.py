"""Users that may do no more than they need: the roles of `agentq broker acl`, and who loads functions."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import chord, group
from typer.testing import CliRunner

from agentq.cli.main import app as command_line
from agentq.errors import BrokerUnavailable, FunctionsMissing
from agentq.flows.blob_sweeper import BlobSweeper
from agentq.ops.acl import Role, rules
from agentq.store import library
from agentq.store.address import parse
from agentq.store.client import Store
from tests.support.ledger import Ledger
from tests.support.redis_server import Server, private_server
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until

APP = "tests.support.apps.both"
KINDS = {"ours": (), "prefork": ("-P", "prefork", "-c", "2")}
ALONE = "--without-mingle"  # Celery's own worker looks for others for 1.6 s
LOAD = "function|load"
INIT = "run `agentq broker init`"
FORBIDDEN = (
    "EVAL 1 0", "FCALL_RO x 0", "SCRIPT LOAD x", "FUNCTION FLUSH", "FUNCTION DELETE aq1",
    "CONFIG GET *", "KEYS *", "SCAN 0", "FLUSHALL", "SHUTDOWN", "ACL LIST", "CLIENT LIST",
    "MONITOR", "GET other", "HGETALL {aq:else}:run:x",
)  # fmt: skip
CONTAINERS = ("MEMORY", "XGROUP", "XINFO")
AN_ADMINS = ("FUNCTION DELETE", "CONFIG GET", "CLIENT LIST")
NOT_A_PRODUCERS = ("BLPOP {aq:main}:wake:w 1", "PUBLISH {aq:main}:/0.celery.pidbox shutdown",
                   "XREADGROUP GROUP w me STREAMS {aq:main}:s:shared:normal >")  # fmt: skip


@pytest.fixture
def server() -> Iterator[Server]:
    """A server without functions, with one user of each role; the test itself may do anything."""
    with private_server() as own:
        for role in Role:
            given = rules(role, cell="main")
            own.client.execute_command("ACL", "SETUSER", role, "reset", "on", ">secret", *given)
        yield own


def url(server: Server, role: Role) -> str:
    return server.url.replace("://", f"://{role}:secret@")


def init(server: Server, *options: str) -> str:
    runner = CliRunner(env={"AGENTQ_BROKER__URL": url(server, Role.ADMIN)})
    return runner.invoke(command_line, ["broker", "init", *options]).output


def test_a_server_that_lets_nobody_in_says_what_the_url_lacks(server: Server) -> None:
    def said(url: str) -> str:
        store = Store(address=parse(url), timeout=timedelta(seconds=2))
        with pytest.raises(BrokerUnavailable) as refused:
            store.command("PING")
        return str(refused.value)

    server.client.execute_command("ACL", "SETUSER", "default", "off")
    wanted = server.url.replace("://", "://USER:PASSWORD@")
    assert said(server.url) == f"the broker at {server.url} asks for a user and password: {wanted}"
    refused = said(server.url.replace("://", "://ann:hush@"))
    assert refused.startswith(f"the broker at {server.url} refuses user 'ann': ")
    assert "hush" not in refused


def denied(server: Server, *roles: str) -> list[str]:
    """Return what users of these roles were refused; a driver's greeting is not needed."""
    return [
        f"{entry['username']} {entry['context']} {entry['object']}"
        for entry in server.client.acl_log()
        if entry["username"] in roles and entry["object"] != "client|setinfo"
    ]


@contextmanager
def roles(server: Server, ledger: Ledger, kind: str) -> Iterator[tuple[Running, Any]]:
    """An app with a worker of the role worker; return it, and the app as a producer imports it."""
    with running(APP, url(server, Role.WORKER), ledger, WORKER__LEASE="3s") as working:
        working.worker(options=(*BOTH_POOLS, "-E", *KINDS[kind]))
        with running(APP, url(server, Role.PRODUCER), ledger) as producing:
            yield working, producing.app


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's `save`
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_needs_more_than_the_roles_give(server: Server, ledger: Ledger, kind: str) -> None:
    init(server)
    with roles(server, ledger, kind) as (working, app):
        width = 600 if kind == "ours" else 20  # so many are staged
        run = app.doubled.submit(width, tenant="acme", deadline="1m")
        assert run.result(timeout=20) == width * (width - 1)
        assert run.history()[-1].kind == "end"
        blob = app.aq.blobs.refer(run.id, b"{}", what="it")
        app.aq.blobs.put({blob: b"{}"})
        assert BlobSweeper(app=working.app.aq).round(now_s=time.time() + 172_800) == 0
        waiting = app.sleeping.submit(30)
        wait_until(lambda: ledger.count(f"began {waiting.id}"), "the sleeper runs")
        assert waiting.cancel()

        assert app.second_time.delay(3).get(timeout=20) == 3
        assert app.add.apply_async((1, 2), countdown=0.1).get(timeout=20) == 3
        header = [group(app.add.s(1, 1), app.add.s(2, 2)), app.add.s(3, 3)]
        assert chord(header, app.total.s()).apply_async().get(timeout=20) == 12
        many = group(app.same.si(i) for i in range(width)).apply_async()
        many.save()
        assert sum(many.get(timeout=20)) == sum(range(width))
        many.forget()
        assert list(working.app.app.control.inspect(timeout=5, limit=1).ping()) == ["w@test"]
    assert denied(server, "producer", "worker") == []


def test_workers_and_the_admin_have_the_commands_of_all_functions() -> None:
    """Which of them a test's calls reach is one thing, which a worker comes to in time another."""
    found = re.findall(r"redis\.call\('([A-Z]+)'(?:, '([A-Z]+)')?", library.source())
    assert len(found) > 100
    inner = {f"{command}|{word}" if command in CONTAINERS else command for command, word in found}
    for role in (Role.WORKER, Role.ADMIN):
        given = {rule[1:].upper() for rule in rules(role, cell="main") if rule.startswith("+")}
        assert inner <= given, inner - given


def test_no_role_may_run_scripts_or_see_more_than_its_cell(server: Server) -> None:
    for role in Role:
        connection = redis.Redis.from_url(
            url(server, role).replace("agentq+unix", "unix"), decode_responses=True
        )
        more = NOT_A_PRODUCERS if role is Role.PRODUCER else ()
        for command in (*FORBIDDEN, *more):
            if role is Role.ADMIN and command.startswith(AN_ADMINS):
                continue
            with pytest.raises(redis.exceptions.NoPermissionError):
                connection.execute_command(*command.split())
        connection.close()


async def submitted(app: Any) -> None:
    try:
        await app.doubled.asubmit(1)
    finally:
        await app.aq.aclose()


def test_a_producer_is_told_what_to_run(server: Server, ledger: Ledger) -> None:
    with running(APP, url(server, Role.PRODUCER), ledger) as producing:
        app = producing.app
        with pytest.raises(FunctionsMissing, match=INIT):
            app.doubled.submit(1)
        with pytest.raises(FunctionsMissing, match=INIT):
            asyncio.run(submitted(app))
        with pytest.raises(FunctionsMissing, match=INIT):
            app.doubled.submit_many([1, 2])
        with pytest.raises(FunctionsMissing, match=INIT):
            app.add.delay(1, 2)
        assert "loaded" in init(server)
        assert not app.doubled.submit(1).duplicate


def asks_again(server: Server) -> None:
    """Wait until the server has refused a few more calls."""

    def refused() -> int:
        return int(server.client.info("commandstats")["cmdstat_fcall"]["failed_calls"])

    before = refused()
    wait_until(lambda: refused() > before + 4, "asked again", 15)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_waits_for_the_functions_and_says_so_once(
    server: Server, ledger: Ledger, kind: str
) -> None:
    with (
        running(APP, url(server, Role.WORKER), ledger, WORKER__LEASE="3s") as working,
        running(APP, url(server, Role.PRODUCER), ledger) as producing,
        ThreadPoolExecutor(1) as starting,
    ):
        worker = working.new_worker(options=(*BOTH_POOLS, ALONE, *KINDS[kind]))
        started = starting.submit(worker.start)
        wait_until(lambda: INIT in worker.log(), worker.log, 25)
        asks_again(server)
        init(server)
        started.result(25)
        app = producing.app
        assert app.add.delay(1, 2).get(timeout=10) == 3
        assert worker.log().count(INIT) == 1

        # What the server loses comes back the same way, and what ran meanwhile ends once.
        run = app.sleeping.submit(0.5)
        wait_until(lambda: ledger.count(f"began {run.id}"), "the sleeper runs")
        assert app.add.delay(2, 2).get(timeout=10) == 4  # its ack may be on its way
        server.client.function_flush()
        wait_until(lambda: worker.log().count(INIT) == 2, worker.log, 10)
        wait_until(lambda: ledger.count(f"ended {run.id}"), "it has ended", 10)
        asks_again(server)
        init(server)
        assert run.result(timeout=10) == 0.5
        assert app.add.delay(3, 4).get(timeout=10) == 7
        assert ledger.count(f"began {run.id}") == 1
        assert worker.log().count(INIT) == 2
        assert "Traceback" not in worker.log()
        # Loading is tried once by each of a process' stores, not with every call.
        tried = [one["count"] for one in server.client.acl_log() if one["object"] == LOAD]
        assert sum(tried) <= 5
        assert worker.alive()


@pytest.mark.parametrize("kind", KINDS)
def test_where_it_may_a_worker_brings_lost_functions_back_by_itself(
    server: Server, ledger: Ledger, kind: str
) -> None:
    with running(APP, server.url, ledger, WORKER__LEASE="3s") as working:
        worker = working.worker(options=(*BOTH_POOLS, ALONE, *KINDS[kind]))
        server.client.function_flush()
        wait_until(lambda: server.client.function_list(library.LIBRARY), worker.log, 10)
        assert working.app.add.delay(1, 2).get(timeout=10) == 3
        assert INIT not in worker.log()


def test_init_says_what_it_did_and_check_does_nothing(server: Server) -> None:
    there = f"functions {library.LIBRARY}, revision {library.REVISION}"
    assert init(server, "--check") == (
        f"the functions {library.LIBRARY} are missing: agentq broker init loads them\n"
    )
    assert init(server) == f"{there}: loaded, {len(library.names())} of them\n"
    assert init(server) == f"{there}: there already\n"
    assert init(server, "--check") == f"{there}: there already\n"
