"""Two builds on one server: an upgrade rolls, and what a worker can not read waits for one that can."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis

from agentq.broker.envelope import NEWEST
from agentq.errors import FunctionsMissing
from agentq.ops.acl import Role, rules
from agentq.store import library
from agentq.store.client import Store
from tests.contract.wire.recordings import BEFORE, recorded
from tests.support.cell import Cell, message
from tests.support.ledger import Ledger
from tests.support.redis_server import Server, private_server
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT, WorkerProcess

APP = "tests.support.apps.both"
NEWER = f"message version {NEWEST + 1}"
KINDS = {"ours": (), "prefork": ("-P", "prefork", "-c", "1", "--without-mingle")}
BUILD_BEFORE = f"functions.{library.LIBRARY}.{BEFORE}.lua"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own, since functions are all cells'."""
    with private_server() as own:
        yield own


# -- the envelope ---------------------------------------------------------------------------------


def newer(app: Any, work: Any) -> None:
    """Submit *work* as a build would whose envelopes are of a version that this one has not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentq.broker.envelope.VERSION", NEWEST + 1)
        work(app)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_of_a_newer_version_is_parked_not_run_and_not_dead(
    url: str, ledger: Ledger, kind: str
) -> None:
    with running(APP, url, ledger, WORKER__LEASE="3s") as both:
        app, store = both.app, both.app.aq.store
        newer(app, lambda app: app.doubled.submit(1, key="newer"))
        newer(app, lambda app: app.add.apply_async((1, 1), task_id="newer", countdown=0.001))
        worker = both.worker(options=(*BOTH_POOLS, *KINDS[kind]))
        assert app.add.delay(2, 2).get(timeout=15) == 4
        wait_until(lambda: parked(app) == {NEWER: 2}, worker.log)
        assert store.command("XLEN", store.keys.dead()) == 0
        assert ledger.lines() == ["add 2 2"]
        assert app.doubled.submit(1, key="newer").status().state == "running"
        assert app.add.AsyncResult("newer").state == "PENDING"
        assert worker.alive()


def parked(app: Any) -> dict[str, int]:
    found: dict[bytes, bytes] = app.aq.store.command("HGETALL", app.aq.store.keys.parked())
    return {name.decode(): int(count) for name, count in found.items()}


# -- two builds -----------------------------------------------------------------------------------


@pytest.fixture
def next_build(tmp_path: Path) -> Path:
    """The sources of this build with the next number on its data and its envelopes."""
    folder = tmp_path / "next"
    shutil.copytree(ROOT / "agentq", folder / "agentq", ignore=shutil.ignore_patterns("*.pyc"))
    replaced = 0
    for path in (*folder.rglob("*.py"), *folder.rglob("*.lua")):
        text = path.read_text(encoding="utf-8")
        new = text.replace("aq1", "aq2")
        if path.name == "envelope.py":
            new = re.sub(r"^(VERSION|NEWEST) = .*$", rf"\1 = {NEWEST + 1}", new, flags=re.MULTILINE)
        replaced += new != text
        path.write_text(new, encoding="utf-8")
    assert replaced > 20
    return folder


class Next:
    """Processes of the next build."""

    def __init__(self, folder: Path, both: Running) -> None:
        self._folder = folder
        self._variables = both.variables | {"PYTHONPATH": f"{folder}:{ROOT}"}

    def worker(self) -> WorkerProcess:
        options = ("-n", "next@test", *BOTH_POOLS)
        return WorkerProcess(
            f"{APP}:app", options=options, env=self._variables, folder=self._folder
        )

    def submit(self, flow: str, argument: object) -> str:
        command = ["submit", flow, orjson.dumps(argument).decode(), "-A", f"{APP}:aq", "--json"]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "agentq", *command],
            env={**os.environ, **self._variables}, cwd=self._folder, timeout=25,
            capture_output=True, check=True,
        )  # fmt: skip
        return str(orjson.loads(done.stdout)["run"])


@pytest.mark.timeout(60)
def test_two_versions_of_the_functions_stand_side_by_side_and_nothing_is_lost(
    server: Server, ledger: Ledger, next_build: Path
) -> None:
    with running(APP, server.url, ledger, WORKER__LEASE="3s") as both:
        app, following = both.app, Next(next_build, both)
        old = both.worker()
        new_run = app.aq.run(following.submit("doubled", 3))
        wait_until(lambda: parked(app) == {NEWER: 1}, old.log)
        names = {found[1].decode() for found in server.client.function_list()}
        assert names == {"aq1", "aq2"}

        new = following.worker()
        try:
            new.start()
            assert new_run.result(timeout=15) == 6
            old_runs = [app.doubled.submit(n) for n in (4, 5, 6)]
            another = app.aq.run(following.submit("doubled", 7))
            sums = [run.result(timeout=20) for run in (*old_runs, another)]
            assert sums == [n * (n - 1) for n in (4, 5, 6, 7)]
            counts = ledger.counts("double")
            assert set(counts.values()) == {1}
            assert len(counts) == 3 + 4 + 5 + 6 + 7
            old.kill()  # what it held comes to the other one
            assert app.doubled.submit(2).result(timeout=20) == 2
            assert new.stop() == 0
            assert server.streams() == {}
        finally:
            new.close()


@pytest.fixture
def build_without_blobs(tmp_path: Path) -> Path:
    """The sources of this build as one that reads no message with a blob."""
    folder = tmp_path / "before"
    shutil.copytree(ROOT / "agentq", folder / "agentq", ignore=shutil.ignore_patterns("*.pyc"))
    path = folder / "agentq/broker/envelope.py"
    text = path.read_text(encoding="utf-8")
    assert "\nNEWEST = WITH_BLOB\n" in text
    path.write_text(text.replace("\nNEWEST = WITH_BLOB\n", "\nNEWEST = 1\n"), encoding="utf-8")
    return folder


def test_a_large_payload_waits_for_a_build_that_knows_blobs(
    url: str, ledger: Ledger, build_without_blobs: Path
) -> None:
    with running("tests.support.apps.large", url, ledger) as found:
        variables = found.variables | {"PYTHONPATH": f"{build_without_blobs}:{ROOT}"}
        before = WorkerProcess(
            "tests.support.apps.large:app", options=("-n", "before@test", *BOTH_POOLS),
            env=variables, folder=build_without_blobs,
        )  # fmt: skip
        try:
            before.start()
            large = found.app.echo.submit("x" * 300_000)
            assert found.app.echo.submit("small").result(timeout=15) == "small"
            wait_until(lambda: parked(found.app) == {"message version 2": 1}, before.log)
            assert before.stop() == 0
            found.worker()
            assert large.result(timeout=25) == "x" * 300_000
        finally:
            before.close()
        assert ledger.count("same") == 2


# -- revisions of the functions -------------------------------------------------------------------


def revision(text: str, number: int) -> str:
    """Return the functions with another revision."""
    assert f"REVISION, DIGEST = {library.REVISION}," in text
    old = f"REVISION, DIGEST = {library.REVISION},"
    text = text.replace(old, f"REVISION, DIGEST = {number},")
    return text.replace(f"-- revision {library.REVISION}\n", f"-- revision {number}\n")


def there(server: Server) -> int:
    """Return the revision of the functions that the server has, as any build can read it."""
    [found] = server.client.function_list(library.LIBRARY, withcode=True)
    code = str(found)
    return int(re.findall(r"-- revision (\d+)", code)[0])


def test_the_functions_of_the_build_before_are_replaced_and_do_its_work_further(
    server: Server,
) -> None:
    server.client.function_load(recorded(BUILD_BEFORE))
    cell = Cell(server.url)
    assert there(server) == BEFORE
    cell.store._knows_server = True  # noqa: SLF001 -- as of the build before, which asks nothing
    cell.enqueue(message("old"))
    assert there(server) == BEFORE
    cell = Cell(server.url)
    cell.renew("w")  # the first call of this build
    assert there(server) == library.REVISION
    assert [one.id for one in cell.fetch("w")] == ["old"]


@pytest.mark.parametrize("ask", ["ensure_functions", "renew"])
def test_newer_functions_are_left_alone(server: Server, ask: str) -> None:
    newest = library.REVISION + 1
    server.client.function_load(revision(library.source(), newest))
    cell = Cell(server.url)
    if ask == "renew":
        cell.renew("w")
    else:
        assert cell.store.ensure_functions().revision == newest
    assert there(server) == newest


def test_a_worker_works_with_newer_functions_and_leaves_them(
    server: Server, ledger: Ledger
) -> None:
    newest = library.REVISION + 1
    server.client.function_load(revision(library.source(), newest))
    with running(APP, server.url, ledger) as both:
        both.worker()
        assert both.app.doubled.submit(3).result(timeout=15) == 6
    assert there(server) == newest


class Overtaken(redis.Redis):
    """A client before whose `FUNCTION LOAD` somebody else loads newer functions."""

    newer = ""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[:2] == ("FUNCTION", "LOAD") and self.newer:
            text, self.newer = self.newer, ""
            super().execute_command("FUNCTION", "LOAD", text)
        return super().execute_command(*args, **options)


def test_what_somebody_else_loads_meanwhile_is_not_loaded_over(server: Server) -> None:
    newest = library.REVISION + 1
    client = Overtaken(unix_socket_path=str(server.embedded.socket_path))
    client.newer = revision(library.source(), newest)
    found = library.ensure(client)
    assert (found.revision, found.loaded) == (newest, False)
    assert there(server) == newest
    client.close()


def test_other_code_of_this_revision_is_a_workers_to_replace(server: Server) -> None:
    edited = library.source().replace(library.digest(), "0" * 16)
    server.client.function_load(edited)
    producer = Cell(server.url).store
    producer.call(("FCALL", "aq1_about", 0))
    found = producer.find_functions()
    assert found is not None
    assert found.edited
    assert producer.ensure_functions().loaded
    assert not producer.ensure_functions().loaded


def test_one_who_may_not_load_does_not_work_with_older_functions(server: Server) -> None:
    server.client.function_load(revision(library.source(), BEFORE))
    given = rules(Role.WORKER, cell="main")
    server.client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *given)
    cell = Cell(server.url.replace("://", "://worker:secret@"))
    with pytest.raises(FunctionsMissing, match=f"the broker has revision {BEFORE} of them"):
        cell.renew("w")
    Store(address=Cell(server.url).store.address, timeout=None).ensure_functions()
    assert cell.renew("w")
