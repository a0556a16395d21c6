"""Who waits when the primary is replaced, and what Celery's parts do; more in the fault matrix."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentq.errors import BrokerUnavailable
from agentq.store.address import Address, parse
from agentq.store.client import AsyncStore, Store
from tests.fault.scenarios.failover import Stage, eventually, staged
from tests.support.failover import Process, data_server, failover_cell
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.waiting import wait_until


def test_who_waits_on_the_old_primary_is_told_while_it_still_takes_writes() -> None:
    """Sentinel demotes it some ten seconds after its replica was promoted."""
    with failover_cell(sentinels=1) as cell:
        waits = Waits()
        address, old = parse(cell.url), cell.primary
        store = Store(address=address, timeout=timedelta(seconds=30))
        waits.begin("blocking", lambda: store.command("BLPOP", "nothing", 20))
        waits.begin("awaited", lambda: asyncio.run(popped(address)))
        wait_until(
            lambda: [link["cmd"] for link in old.client.client_list()].count("blpop") == 2,
            "both wait",
        )
        cell.fail_over()
        for name in ("blocking", "awaited"):
            with pytest.raises(BrokerUnavailable):
                waits.of(name)
        assert old.client.role()[0] == b"master"
        cell.wait_promoted()
        store.command("SET", "here", "1")
        assert cell.primary.client.get("here") == b"1"
        store.close()


async def popped(address: Address) -> Any:
    store = AsyncStore(address=address, timeout=timedelta(seconds=30))
    try:
        return await store.command("BLPOP", "nothing", 20)
    finally:
        await store.close()


def test_a_server_that_loads_its_data_is_waited_for(ledger: Ledger, tmp_path: Path) -> None:
    server = data_server(tmp_path, "--loading-process-events-interval-bytes", "1024")
    server.start()
    url = f"agentq://127.0.0.1:{server.port}"
    with running("tests.support.apps.faults", url, ledger, WORKER__POLL="500ms") as app:
        worker, flow = app.worker(), app.app.aq.get_flow("one")
        assert flow.submit(1).result(timeout=10) == 1
        server.client.execute_command("DEBUG", "POPULATE", 3000, "filler")
        server.client.bgrewriteaof()
        wait_until(lambda: not _rewriting(server), "what it is to load is written")
        server.kill()
        server.start("--key-load-delay", "500", ready=False)  # microseconds for each key
        refusal = wait_until(lambda: _refusal(flow), "it answers that it loads")
        assert "loading" in refusal
        late = eventually(lambda: flow.submit(2, key="late"))
        assert eventually(lambda: late.result(timeout=10)) == 2
        assert worker.alive()
        assert worker.log().count("; holding ") <= 1  # said once
    server.kill()


def _rewriting(server: Process) -> bool:
    state = server.client.info("persistence")
    return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])


def _refusal(flow: Any) -> str:
    try:
        flow.submit(2, key="late")
    except BrokerUnavailable as error:
        return str(error) if "loading" in str(error) else ""
    return "it took work at once"


@pytest.mark.timeout(90)
def test_waits_events_and_remote_control_follow_a_failover() -> None:
    """Whoever waits when the primary is replaced gets its answer from the new one."""
    with staged("ours", sentinels=1, timeout="5s", seconds=3.0) as stage:
        waits = Waits()
        run = stage.aq.get_flow("fan").submit(2)
        waits.begin("result", lambda: run.result(timeout=30))
        waits.begin("aresult", lambda: asyncio.run(awaited(stage, run.id)))
        waits.begin("events", lambda: [event.kind for event in run.events()][-1])
        waits.begin("get", lambda: stage.module.member.delay(7).get(timeout=30))
        seen = Watched(stage)
        waits.begin("watching", seen.run)
        wait_until(lambda: len(stage.ledger.lines("begin ")) == 3, "all of them run")
        stage.cell.primary.client.set("marked", 1)
        assert stage.cell.primary.client.wait(1, 10_000) == 1, "the replica has all of it"
        stage.cell.primary.client.execute_command("CLIENT", "PAUSE", 15000, "WRITE")
        stage.cell.fail_over()
        stage.cell.wait_promoted()
        outcomes = {name: waits.of(name) for name in ("result", "aresult", "events", "get")}
        assert outcomes == {"result": [0, 1], "aresult": [0, 1], "events": "end", "get": 7}
        assert list(eventually(ping(stage))) == ["ours@test"]
        late: set[str] = set()

        def heard() -> set[str]:  # an event that comes while its listener is away is gone: one more
            run = eventually(lambda: stage.aq.get_flow("one").submit(9))
            late.add(f"{run.id}:0")
            return late & seen.succeeded

        wait_until(heard, lambda: f"an event of {late}: {seen.succeeded}")
        seen.stop = True
        assert stage.worker.alive()


async def awaited(stage: Stage, run: str) -> Any:
    try:
        return await stage.aq.run(run).aresult(timeout=30)
    finally:
        await stage.aq.aclose()


def ping(stage: Stage) -> Callable[[], dict[str, Any]]:
    inspect = stage.aq.celery.control.inspect(timeout=2)

    def ask() -> dict[str, Any]:
        answer = inspect.ping()
        if not answer:
            raise BrokerUnavailable("no worker answered")
        return answer  # type: ignore[no-any-return]

    return ask


class Watched:
    """Listens to Celery's events as Flower does: on a connection that is made anew when it ends."""

    def __init__(self, stage: Stage) -> None:
        self.succeeded: set[str] = set()
        self.stop = False
        self._app = stage.aq.celery

    def run(self) -> None:
        while not self.stop:
            with suppress(Exception), self._app.connection() as connection:
                receiver = self._app.events.Receiver(
                    connection, handlers={"task-succeeded": self._note}
                )
                while not self.stop:
                    with suppress(TimeoutError):
                        receiver.capture(limit=None, timeout=0.5)
            time.sleep(0.1)  # as Flower does

    def _note(self, event: dict[str, Any]) -> None:
        self.succeeded.add(event["uuid"])


class Waits:
    """Calls that wait, each in a thread that ends with the session at the latest."""

    def __init__(self) -> None:
        self._begun: dict[str, Future[Any]] = {}

    def begin(self, name: str, call: Callable[[], Any]) -> None:
        self._begun[name] = future = Future()

        def answer() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 -- for whoever asks
                future.set_exception(error)

        threading.Thread(target=answer, name=name, daemon=True).start()

    def of(self, name: str) -> Any:
        return self._begun[name].result(timeout=45)
