"""The broker goes away, cuts its links, fills up or turns read-only in the middle of a run."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from agentq.errors import BrokerUnavailable
from agentq.runs.handle import RunHandle
from agentq.store import calls
from tests.support.ledger import Ledger
from tests.support.proxy import proxy_to
from tests.support.redis_server import Server
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

WIDTH = 60
NARROW = (*BOTH_POOLS, "-c", "6")
PREFORK = (*BOTH_POOLS, "-c", "2", "-P", "prefork")
Options = tuple[str, ...]


@pytest.fixture
def app(breakable_server: Server, ledger: Ledger) -> Iterator[Running]:
    """An app with two workers and a server that may be broken."""
    settings = {"WORKER__LEASE": "2s", "WORKER__POLL": "500ms"}
    with running("tests.support.apps.faults", breakable_server.url, ledger, **settings) as app:
        app.variables["AQ_TEST_SECONDS"] = "0.1"
        app.worker("first", options=NARROW)
        app.worker("second", options=NARROW)
        yield app


def submit(app: Running, flow: str, argument: Any) -> RunHandle:
    return app.app.aq.get_flow(flow).submit(argument)  # type: ignore[no-any-return]


def eventually(ask: Callable[[], Any], timeout: float = 15.0) -> Any:
    """Return the answer of *ask*, asked again as long as the broker is unavailable."""
    answer: list[Any] = []

    def answered() -> bool:
        try:
            answer.append(ask())
        except BrokerUnavailable:
            return False
        return True

    wait_until(answered, "the broker answers", timeout)
    return answer[0]


def until_ended(ledger: Ledger, members: int) -> None:
    wait_until(lambda: len(ledger.lines("end ")) >= members, f"{members} members have ended")


def assert_whole(handle: RunHandle, ledger: Ledger, width: int = WIDTH) -> None:
    assert eventually(lambda: handle.result(timeout=12)) == list(range(width))
    assert ledger.counts("body") == {f"body {handle.id}": 1}
    done = [
        event.data["task"]
        for event in eventually(lambda: list(handle.events()))
        if event.kind == "step" and event.data["state"] == "done"
    ]
    assert len(done) == len(set(done)) == width + 2


def test_what_ends_while_links_are_cut_is_not_run_again(
    breakable_server: Server, ledger: Ledger
) -> None:
    """Nothing died and no lease ended: whatever begins, begins once."""
    members = 6000
    client = breakable_server.client
    with running("tests.support.apps.faults", breakable_server.url, ledger) as app:
        app.variables["AQ_TEST_SECONDS"] = "0.05"
        app.worker("wide", options=(*BOTH_POOLS, "-c", "200"))
        handle = submit(app, "fan", members)
        seen = -1
        while (ended := len(ledger.lines("end "))) < members * 0.9:
            if ended > seen:  # it gets on, however slow the machine is
                seen = ended
                for link in client.client_list():
                    if link["cmd"].startswith("fcall"):
                        client.client_kill_filter(_id=link["id"])
            time.sleep(0.05)
        assert_whole(handle, ledger, members)
    begun = Counter(line.split()[1] for line in ledger.lines("begin "))
    assert {number for number, times in begun.items() if times > 1} == set()


def test_progress_of_a_step_survives_cut_connections(
    app: Running, breakable_server: Server, ledger: Ledger
) -> None:
    handle = submit(app, "chat", 60)
    wait_until(lambda: ledger.lines("chatty begin"), "it talks")
    for part in (5, 20, 35):
        wait_until(
            lambda part=part: _said(handle) > part,  # type: ignore[misc]
            lambda part=part: f"part {part}: {handle.status()}",  # type: ignore[misc]
        )
        breakable_server.client.client_kill_filter(skipme=True)
    assert eventually(lambda: handle.result(timeout=10)) == 60


def test_what_only_the_broker_thinks_a_worker_has_is_handed_back_on_the_next_link(
    breakable_server: Server, ledger: Ledger
) -> None:
    """As after a failover, or an answer that was lost with an idle link."""
    with running("tests.support.apps.faults", breakable_server.url, ledger) as app:
        worker = app.worker("w", options=NARROW)
        store = app.app.aq.store
        [name] = store.command("ZRANGE", store.keys.workers(), 0, -1)
        worker.send(signal.SIGSTOP)
        handle = submit(app, "one", 7)
        fetch = calls.fetch(store.keys.prefix, name.decode(), "shared", 1, 0, ("normal", 1))
        assert len(store.call(fetch)[1]) == 1
        breakable_server.client.client_kill_filter(skipme=True)
        worker.send(signal.SIGCONT)
        assert eventually(lambda: handle.result(timeout=12)) == 7


def _said(handle: RunHandle) -> int:
    store = handle._store  # noqa: SLF001
    return int(eventually(lambda: store.command("XLEN", store.keys.events(handle.id))))


def test_a_broker_that_turns_read_only_is_waited_for(
    app: Running, breakable_server: Server, ledger: Ledger
) -> None:
    """As a failover does it: the old master answers every write with an error."""
    handle = submit(app, "fan", WIDTH)
    until_ended(ledger, 12)
    breakable_server.client.replicaof("127.0.0.1", 1)
    with pytest.raises(BrokerUnavailable, match="replica"):
        submit(app, "one", 1)
    with pytest.raises(BrokerUnavailable):
        app.app.aq.get_flow("one").submit_many([1, 2])
    held = len(ledger.lines("begin "))
    wait_until(lambda: len(ledger.lines("end ")) == held, "what was under way has ended")
    breakable_server.client.replicaof("NO", "ONE")
    assert_whole(handle, ledger)
    assert len(ledger.lines("begin ")) == WIDTH


def test_a_full_broker_refuses_new_runs_and_lets_started_ones_end(
    app: Running, breakable_server: Server, ledger: Ledger
) -> None:
    """A wide fan-out: its members are staged while there is no memory left."""
    blocker = submit(app, "block", 1.5)
    wait_until(lambda: ledger.lines("blocking begin"), "a worker is at work")
    handle = submit(app, "wide", 1200)
    breakable_server.client.config_set("maxmemory", 1)
    with pytest.raises(BrokerUnavailable, match=r"full \(maxmemory\)"):
        submit(app, "one", 1)
    with pytest.raises(BrokerUnavailable, match=r"full \(maxmemory\)"):
        app.app.aq.get_flow("one").submit_many([1, 2])
    assert handle.result(timeout=10) == list(range(1200))
    assert blocker.result(timeout=10) in ("first@test", "second@test")
    breakable_server.client.config_set("maxmemory", 0)
    assert submit(app, "one", 1).result(timeout=5) == 1


def has_met_it(worker: WorkerProcess) -> bool:
    assert worker.alive(), worker.log()
    return "Protocol error" in worker.log()


@pytest.mark.parametrize(
    ("runs", "starts", "instead", "said"),
    [
        (NARROW, PREFORK, b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "is no Redis"),
        (PREFORK, NARROW, b"\x15\x03\x03\x00\x02\x02\x28", r"is no Redis.*agentq\+tls://"),
    ],
    ids=["http", "tls"],
)
def test_what_answers_as_another_service_for_a_while_is_waited_for(
    session_server: Server,
    ledger: Ledger,
    runs: Options,
    starts: Options,
    instead: bytes,
    said: str,
) -> None:
    """By who runs, by who starts meanwhile, and by a result; a submit is told."""
    with (
        proxy_to(session_server.embedded.socket_path) as proxy,
        running("tests.support.apps.faults", proxy.url, ledger) as app,
    ):
        workers = app.worker("runs", options=runs), app.new_worker("starts", options=starts)
        handle = submit(app, "block", 0.5)
        wait_until(lambda: ledger.lines("blocking begin"), "a worker is at work")
        with proxy.answering(instead):
            workers[1].start(wait=False)
            with pytest.raises(BrokerUnavailable, match=said):
                submit(app, "one", 1)
            for worker in workers:
                wait_until(partial(has_met_it, worker), "each worker has met it")
        assert handle.result(timeout=10) == "runs@test"
        assert eventually(lambda: submit(app, "one", 1)).result(timeout=10) == 1
        wait_until(lambda: " ready." in workers[1].log(), "the other has started")
