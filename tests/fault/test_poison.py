"""Steps that end or hang their process, among others that do not: only the guilty one is dead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import chord

from tests.support.ledger import Ledger
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

LEASE_S, HANG_S = 1.0, 0.6
WIDE = (*BOTH_POOLS, "-c", "500")

Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def start(url: str, ledger: Ledger) -> Start:
    @contextmanager
    def started(seconds: float = 1.0, **settings: str) -> Iterator[Running]:
        chosen = {"WORKER__LEASE": f"{LEASE_S}s", "WORKER__HANG_TIMEOUT": f"{HANG_S}s"} | settings
        with running("tests.support.apps.poison", url, ledger, **chosen) as app:
            app.variables["AQ_TEST_SECONDS"] = f"{seconds}"
            yield app

    return started


class Supervised:
    """A worker that is started again when it has died, as systemd would."""

    def __init__(self, app: Running) -> None:
        self._app = app
        self.deaths = 0
        self.worker: WorkerProcess = app.worker("w", options=WIDE)

    def until(self, happened: Callable[[], bool], what: str, timeout: float = 28) -> None:
        def looked() -> bool:
            if not self.worker.alive():
                self.deaths += 1
                self.worker = self._app.worker(f"w{self.deaths}", options=WIDE)
            return happened()

        wait_until(looked, lambda: f"{what}\n{self.worker.log()[-3000:]}", timeout)


def submit(app: Running, flow: str, argument: Any) -> Any:
    return app.app.aq.get_flow(flow).submit(argument)


def dead_letters(app: Running) -> list[dict[bytes, bytes]]:
    store = app.app.aq.store
    return [fields for _, fields in store.command("XRANGE", store.keys.dead(), "-", "+")]


def counted(ledger: Ledger, beginning: str) -> dict[str, int]:
    """Return how often each number stands behind *beginning*."""
    numbers = [line.split()[1] for line in ledger.lines(f"{beginning} ")]
    return {number: numbers.count(number) for number in numbers}


def pids(ledger: Ledger, beginning: str) -> list[str]:
    return [line.split()[-1] for line in ledger.lines(f"{beginning} ")]


@pytest.mark.parametrize("kind", ["kill", "exit"])
def test_of_a_poison_step_among_200_one_is_dead_and_200_end_once(
    start: Start, ledger: Ledger, kind: str
) -> None:
    with start(0.8) as app:
        supervised = Supervised(app)
        handle = submit(app, "fan", [*range(200), kind])
        wait_until(lambda: ledger.lines("poison"), "the poison strikes")
        struck = time.monotonic()
        supervised.until(lambda: handle.status().state == "done", "the run ends")
        took = time.monotonic() - struck
        expected = [["ok", number] for number in range(200)] + [["WorkerLost", 3]]
        assert handle.result() == expected
        [letter] = dead_letters(app)
    assert supervised.deaths == 1
    assert (letter[b"a"], letter[b"why"]) == (b"3", b"its worker died 3 times while it ran")
    assert counted(ledger, "end") == {str(number): 1 for number in range(200)}
    assert counted(ledger, "begin") == {str(number): 2 for number in range(200)}
    assert len(set(pids(ledger, "poison"))) == len(pids(ledger, "poison")) == 4  # 1 beside, 3 alone
    assert len(set(pids(ledger, "end"))) == 200  # each in a process of its own
    assert {line.split()[3] for line in ledger.lines("begin ")} == {"1", "2"}
    print(f"poison to the run's end: {took:.1f} s, of which lease and restart about 3 s")


def test_a_step_that_holds_the_gil_counts_as_dead_and_its_neighbours_end(
    start: Start, ledger: Ledger
) -> None:
    with start(0.5) as app:
        first = app.worker("first", options=WIDE)
        handle = submit(app, "fan", [*range(20), "regex"])
        wait_until(lambda: ledger.lines("poison"), "the poison strikes")
        second = app.worker("second", options=WIDE)
        wait_until(lambda: handle.status().state == "done", lambda: second.log()[-3000:], 25)
        assert first.alive()
        assert second.alive()
        assert handle.result() == [["ok", n] for n in range(20)] + [["WorkerLost", 3]]
        assert "stood still for 1.6 s: charged, 3 of 3" in second.log()
        assert len(dead_letters(app)) == 1
    assert counted(ledger, "end") == {str(number): 1 for number in range(20)}
    assert len(pids(ledger, "poison")) == 4


def test_a_step_that_blocks_its_loop_too_long_counts_as_dead(start: Start, ledger: Ledger) -> None:
    with start(0.2) as app:
        first, second = app.worker("first"), app.worker("second")
        handle = submit(app, "single", "block")
        wait_until(lambda: handle.status().state == "failed", "it is given up", 25)
        assert first.alive()
        assert second.alive()
    assert len(pids(ledger, "poison")) == 4


@pytest.mark.parametrize("kind", ["threaded", "computed"])
def test_def_steps_are_run_alone_too(start: Start, ledger: Ledger, kind: str) -> None:
    with start(0.4) as app:
        worker = app.worker("w", options=WIDE)
        handle = submit(app, kind, 7)
        wait_until(lambda: ledger.lines("begin"), "it runs")
        worker.kill()
        after = app.worker("after", options=WIDE)
        assert handle.result(timeout=15) == 7
        first, second = pids(ledger, "begin")
        assert second not in (first, str(after.pid))
        assert pids(ledger, "end") == [second]
        assert after.alive()


def test_a_suspect_has_its_context_and_its_times_in_the_timeline(
    start: Start, ledger: Ledger
) -> None:
    with start(0.6) as app:
        worker = app.worker("w")
        handle = submit(app, "single", 5)
        wait_until(lambda: ledger.lines("begin"), "it runs")
        worker.kill()
        app.worker("after")
        assert handle.result(timeout=15) == 5
        events = list(handle.events())
    assert [event.kind for event in events] == ["lost", "progress", "step", "end"]
    lost = events[0].data
    assert (lost["step"], lost["worker"], lost["charged"], lost["attempt"]) == (
        events[2].data["step"], "w@test", 0, 1,
    )  # fmt: skip
    data = events[2].data
    assert (data["state"], data["attempt"], data["worker"]) == ("done", 2, "after@test")
    assert 600 <= data["spent"]["tools"] < 1000
    assert 600 <= data["ran"] < 1200


def test_a_suspect_that_raises_is_retried_as_any_step(start: Start, ledger: Ledger) -> None:
    with start(0.4) as app:
        worker = app.worker("w")
        handle = submit(app, "failing", 5)
        wait_until(lambda: ledger.lines("begin"), "it runs")
        worker.kill()
        app.worker("after")
        assert handle.result(timeout=15) == 5
    assert [line.split()[2] for line in ledger.lines("begin")] == ["1", "2", "3"]
    assert dead_letters(app) == []


def test_suspects_leave_their_slots_to_other_work(start: Start, ledger: Ledger) -> None:
    with start(20, WORKER__SUSPECTS="2") as app:
        worker = app.worker("w", options=(*BOTH_POOLS, "-c", "8"))
        submit(app, "fan", list(range(8)))
        wait_until(lambda: len(ledger.lines("begin")) == 8, "eight run")
        worker.kill()
        app.variables["AQ_TEST_SECONDS"] = "20"
        after = app.worker("after", options=(*BOTH_POOLS, "-c", "1"))
        wait_until(lambda: len(ledger.lines("begin")) == 10, "two of the eight run alone")
        began = time.monotonic()
        assert app.app.collects.delay([1, 2]).get(timeout=10) == 3
        assert time.monotonic() - began < 3
        assert len(ledger.lines("begin")) == 10
        after.send(signal.SIGTERM)
        after.send(signal.SIGTERM)
        after.wait_ended(10)
    children = set(pids(ledger, "begin")[8:])
    wait_until(lambda: not any(runs(int(pid)) for pid in children), "the children are gone")


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def group(leader: int) -> list[int]:
    """Return the processes that a worker started, itself included, as long as they run."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if (
                entry.name.isdigit()
                and os.getpgid(int(entry.name)) == leader
                and runs(int(entry.name))
            ):
                found.append(int(entry.name))
    return found


def test_a_worker_that_is_killed_takes_its_suspect_along_even_one_that_holds_the_gil(
    start: Start, ledger: Ledger
) -> None:
    with start(0.2, WORKER__HANG_TIMEOUT="20s") as app:
        first = app.worker("first")
        handle = submit(app, "single", "regex")
        wait_until(lambda: ledger.lines("poison"), "it hangs its worker")
        first.kill()
        second = app.worker("second")
        wait_until(lambda: len(ledger.lines("poison")) == 2, "it hangs alone")
        child = int(pids(ledger, "poison")[1])
        assert runs(child)
        second.send(signal.SIGKILL)  # to the main process alone
        wait_until(lambda: not runs(child), "the child is gone", 5)
        wait_until(lambda: group(second.pid) == [], lambda: f"{group(second.pid)} are gone", 5)
        handle.cancel()


def test_what_a_drained_worker_held_is_no_suspect(start: Start, ledger: Ledger) -> None:
    with start(30, WORKER__DRAIN_TIMEOUT="100ms") as app:
        worker = app.worker("w")
        handle = submit(app, "single", 5)
        wait_until(lambda: ledger.lines("begin"), "it runs")
        worker.send(signal.SIGTERM)
        assert worker.wait_ended(10) == 0
        app.variables["AQ_TEST_SECONDS"] = "0.1"
        after = app.worker("after")
        assert handle.result(timeout=10) == 5
        assert pids(ledger, "end") == [str(after.pid)]
    assert [line.split()[3] for line in ledger.lines("begin")] == ["1", "1"]


@pytest.mark.parametrize("poison", ["kills", "akills"])
def test_a_poison_task_in_a_chords_header_ends_the_chord_by_its_errback(
    start: Start, ledger: Ledger, poison: str
) -> None:
    with start(0.8) as app:
        supervised = Supervised(app)
        header = [app.app.adds.si(1), app.app.aadds.si(2), getattr(app.app, poison).si("kill")]
        result = chord(header)(app.app.collects.s().on_error(app.app.rescues.s()))
        supervised.until(lambda: bool(ledger.lines("rescues")), "the errback runs")
        members = result.parent.results
        assert [members[0].get(timeout=10), members[1].get(timeout=10)] == [1, 2]
        assert type(members[2].result).__name__ == "WorkerLost"
        assert result.state == "FAILURE"
        [letter] = dead_letters(app)
    assert supervised.deaths == 1
    assert letter[b"a"] == b"3"
    assert counted(ledger, "end") == {"1": 1, "2": 1}
    assert len(pids(ledger, "poison")) == 4
    assert ledger.lines("collects") == []
    assert len(ledger.lines("rescues")) == 1
