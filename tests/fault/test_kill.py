"""Workers that die, stop, hang or are told to go, in the middle of a run with real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import orjson
import pytest

from agentq.host.process import descendants
from agentq.runs.handle import RunHandle
from agentq.settings.sources import CRASH_VARIABLE
from tests.support.ledger import Ledger
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until

LEASE_S = 1.0
STEP_S = 0.2
WIDTH = 40
NARROW = (*BOTH_POOLS, "-c", "4")

Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def start(url: str, ledger: Ledger) -> Start:
    @contextmanager
    def started(**settings: str) -> Iterator[Running]:
        chosen = {"WORKER__LEASE": f"{LEASE_S}s", "WORKER__HANG_TIMEOUT": "600ms"} | settings
        with running("tests.support.apps.faults", url, ledger, **chosen) as app:
            yield app

    return started


def submit(app: Running, flow: str = "fan", argument: Any = WIDTH) -> RunHandle:
    return app.app.aq.get_flow(flow).submit(argument)  # type: ignore[no-any-return]


def until_ended(ledger: Ledger, members: int) -> None:
    wait_until(lambda: len(ledger.lines("end ")) >= members, f"{members} members have ended")


def assert_whole(handle: RunHandle, ledger: Ledger, width: int = WIDTH) -> None:
    """Check that the run ended once, with one outcome for each member, whatever happened."""
    assert handle.result(timeout=20) == list(range(width))
    assert ledger.counts("body") == {f"body {handle.id}": 1}
    assert ledger.counts("plan") == {f"plan {handle.id}": 1}
    done = [
        event.data["task"]
        for event in handle.events()
        if event.kind == "step" and event.data["state"] == "done"
    ]
    assert len(done) == len(set(done)) == width + 2
    assert {line.split()[1] for line in ledger.lines("end ")} == {str(i) for i in range(width)}


def begun_twice(ledger: Ledger) -> set[str]:
    begun = [line.split()[1] for line in ledger.lines("begin ")]
    return {number for number in begun if begun.count(number) > 1}


def held(app: Running, handle: RunHandle, ledger: Ledger, worker: str) -> set[str]:
    """Return the members that a worker began and whose end the broker does not know.

    One that has ended, and whose completion was still on its way, is one of them.
    """
    begun = {x.split()[1] for x in ledger.lines("begin ") if x.split()[2] == f"{worker}@test"}
    store = app.app.aq.store
    entries = store.command("XRANGE", store.keys.events(handle.id), "-", "+")
    ended = [orjson.loads(fields[b"d"]) for _, fields in entries if fields[b"e"] == b"step"]
    return begun - {event["task"].rpartition(".")[2] for event in ended}


def test_what_does_not_end_within_the_drain_timeout_is_handed_back_uncharged(
    start: Start, ledger: Ledger
) -> None:
    with start(WORKER__DRAIN_TIMEOUT="200ms") as app:
        app.variables["AQ_TEST_SECONDS"] = "60"
        slow = app.worker("slow", options=NARROW)
        handle = submit(app, argument=3)
        wait_until(lambda: len(ledger.lines("begin ")) == 3, "three members run")
        slow.send(signal.SIGTERM)
        assert slow.wait_ended(5) == 0
        app.variables["AQ_TEST_SECONDS"] = "0.05"
        app.worker("fast", options=NARROW)
        assert_whole(handle, ledger, 3)
    attempts = [line.split()[2:] for line in ledger.lines("begin ")]
    assert attempts == [["slow@test", "1"]] * 3 + [["fast@test", "1"]] * 3


def test_a_worker_that_drains_is_woken_for_nothing(start: Start, ledger: Ledger) -> None:
    with start(WORKER__DRAIN_TIMEOUT="60s") as app:
        app.variables["AQ_TEST_SECONDS"] = "60"
        worker = app.worker("slow", options=NARROW)
        submit(app, argument=3)
        wait_until(lambda: len(ledger.lines("begin ")) == 3, "three members run")
        store = app.app.aq.store
        idle = [store.keys.idle(pool) for pool in ("critical", "shared")]
        wait_until(lambda: store.command("EXISTS", *idle) == 2, "it has room")
        worker.send(signal.SIGTERM)
        wait_until(lambda: store.command("EXISTS", *idle) == 0, "it has none")
        assert "draining: steps that still run: 3" in worker.log()


def test_a_second_sigterm_ends_at_once(start: Start, ledger: Ledger) -> None:
    with start() as app:
        app.variables["AQ_TEST_SECONDS"] = "60"
        worker = app.worker("slow", options=NARROW)
        handle = submit(app, argument=3)
        wait_until(lambda: len(ledger.lines("begin ")) == 3, "three members run")
        worker.send(signal.SIGTERM)
        wait_until(lambda: "draining: steps that still run: 3" in worker.log(), "it drains")
        began = time.monotonic()
        worker.send(signal.SIGTERM)
        worker.wait_ended(5)
        assert time.monotonic() - began < 2
        app.variables["AQ_TEST_SECONDS"] = "0.05"
        app.worker("fast", options=NARROW)
        assert_whole(handle, ledger, 3)
    assert {line.split()[3] for line in ledger.lines("begin ")} == {"1"}


def test_a_worker_stopped_longer_than_its_lease_is_refused_and_works_on(
    start: Start, ledger: Ledger
) -> None:
    with start() as app:
        frozen, _ = app.worker("frozen", options=NARROW), app.worker("other", options=NARROW)
        handle = submit(app)
        until_ended(ledger, 6)
        frozen.send(signal.SIGSTOP)
        lost = held(app, handle, ledger, "frozen")
        try:
            assert_whole(handle, ledger)
        finally:
            frozen.send(signal.SIGCONT)
        wait_until(lambda: "is lost" in frozen.log(), "it notices")
        assert begun_twice(ledger) <= lost
        again = submit(app)  # both work on it: the frozen one has a new lease
        wait_until(lambda: again.status().state == "done", "the second run ends")
        after = ledger.lines("begin ")[-WIDTH:]
        assert {line.split()[2] for line in after} == {"frozen@test", "other@test"}
        assert handle.result() == list(range(WIDTH))
    assert ledger.counts("body") == {f"body {handle.id}": 1, f"body {again.id}": 1}


@pytest.mark.parametrize("pool", ["agentq", "prefork"])
def test_what_reaches_a_worker_that_was_stopped_for_longer_than_its_lease_is_not_begun(
    pool: str, start: Start, ledger: Ledger
) -> None:
    with start() as app:
        handle = submit(app, "one", 7)
        options = ("-Q", "shared", *(("-P", pool, "-c", "1") if pool != "agentq" else ()))
        app.variables[CRASH_VARIABLE] = "sent-fetch!stop"
        frozen = app.new_worker("frozen", options=options)
        del app.variables[CRASH_VARIABLE]
        frozen.start(wait=False)
        wait_until(lambda: pending(app), "it has been handed the step")
        app.worker("other")
        try:
            assert handle.result(timeout=20) == 7
        finally:
            frozen.send(signal.SIGCONT)
        wait_until(lambda: "lost" in frozen.log(), "it notices")
        assert submit(app, "one", 8).result(timeout=10) == 8
    assert ledger.lines("quick 7") == ["quick 7 other@test"]


def test_what_waits_for_a_child_of_a_worker_that_was_stopped_is_not_begun(
    start: Start, ledger: Ledger
) -> None:
    with start() as app:
        frozen = app.worker("frozen", options=("-Q", "shared", "-P", "prefork", "-c", "1"))
        for child in descendants(frozen.pid):
            os.kill(child, signal.SIGSTOP)
        handle = submit(app, "one", 7)
        wait_until(lambda: "received" in frozen.log(), "it is on its way to the child")
        frozen.send(signal.SIGSTOP)
        app.worker("other")
        try:
            assert handle.result(timeout=20) == 7
        finally:
            os.killpg(frozen.pid, signal.SIGCONT)
        wait_until(lambda: "lost" in frozen.log(), "it notices")
        wait_until(lambda: "quick" in frozen.log().partition("lost")[2], "the child had it")
    assert ledger.lines("quick 7") == ["quick 7 other@test"]


def test_a_step_that_blocks_the_loop_for_less_than_the_limit_keeps_its_lease(
    start: Start, ledger: Ledger
) -> None:
    with start(WORKER__HANG_TIMEOUT="10s") as app:
        app.worker("first"), app.worker("second")
        handle = submit(app, "block", 3.0)
        assert handle.result(timeout=10) in ("first@test", "second@test")
    assert len(ledger.lines("blocking begin")) == 1


def test_a_loop_that_hangs_longer_loses_its_steps_and_what_it_writes_is_refused(
    start: Start, ledger: Ledger
) -> None:
    with start() as app:
        first = app.worker("first")
        handle = submit(app, "block", 4.0)
        wait_until(lambda: ledger.lines("blocking begin first@test"), "it blocks")
        app.worker("second")
        assert handle.result(timeout=6) == "second@test"
        wait_until(lambda: ledger.lines("blocking end first@test 1"), "the first one goes on")
        wait_until(lambda: "is lost" in first.log(), "it notices")
        wait_until(lambda: not pending(app), "it has said how its step ended")
        assert handle.result() == "second@test"
        done = [event for event in handle.events() if event.kind == "step"]
    assert [event.data["worker"] for event in done] == ["second@test"]
    assert ledger.lines("blocking begin") == [
        "blocking begin first@test 1",
        "blocking begin second@test 2",
    ]


def pending(app: Running) -> int:
    """Return how many messages are in anybody's hands."""
    store = app.app.aq.store
    streams = [
        key
        for lane in store.command("SMEMBERS", store.keys.lanes())
        for kind in ("s:", "r:")
        if store.command("EXISTS", key := f"{store.keys.prefix}{kind}{lane.decode()}")
    ]
    return sum(store.command("XPENDING", key, "w")["pending"] for key in streams)
