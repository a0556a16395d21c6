"""A primary that dies or is replaced, with workers and producers that know the Sentinels only.

What is counted, from the ledger and from the promoted server:

    lost      runs whose submit with durable="replica" had returned and that the promoted server does
              not know, and runs without an outcome at the end
    doubled   steps that ran again although the promoted server had their end
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from agentq.errors import BrokerUnavailable, NotReplicated
from agentq.ops.pausing import Kind, pause, resume
from agentq.runs.handle import RunHandle
from agentq.store import calls
from agentq.store.address import parse
from agentq.store.client import Store
from tests.fault.scenarios.row import Row
from tests.support.failover import FailoverCell, failover_cell
from tests.support.ledger import Ledger
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until

T = TypeVar("T")

KINDS = {
    "ours": (*BOTH_POOLS, "-c", "6"),
    "prefork": (*BOTH_POOLS, "-P", "prefork", "-c", "3"),
}
WIDTH = 60
RESUMES_WITHIN_S = 15.0
"""Meant are 5 s, on a machine that does nothing else."""
_SETTLED_S = 0.3
"""Behind the end of a step its completion has reached the replica."""


class Stage:
    """A cell that fails over, an app that knows its Sentinels, one worker."""

    def __init__(self, cell: FailoverCell, app: Running, kind: str, seconds: float) -> None:
        self.cell = cell
        self.ledger = app.ledger
        self.module: Any = app.app
        self.aq = app.app.aq
        app.variables["AQ_TEST_SECONDS"] = str(seconds)
        self.worker = app.worker(kind, options=KINDS[kind])

    def begin(self) -> RunHandle:
        """Start a wide run and return when a fifth of its members has ended."""
        handle: RunHandle = self.aq.get_flow("fan").submit(WIDTH)
        self.cell.wait_replicated()
        wait_until(lambda: len(self.ledger.lines("end ")) >= WIDTH // 5, "some members have ended")
        return handle

    def resumed_after(self, answered: float) -> float:
        """Return how many seconds after the new primary answered work goes on."""
        done = len(self.ledger.lines("quick "))
        eventually(lambda: self.aq.get_flow("one").submit(-1, key=f"resumed at {answered}"))
        wait_until(lambda: len(self.ledger.lines("quick ")) > done, self.worker.log, 30)
        took = time.monotonic() - answered
        assert self.worker.alive(), self.worker.log()
        assert took < RESUMES_WITHIN_S, f"work went on only after {took:.1f} s"
        return took

    def unknown(self, runs: list[str]) -> list[str]:
        """Return those of *runs* that the primary does not know."""
        keys = self.aq.store.keys
        return [run for run in runs if not self.cell.primary.client.exists(keys.run(run))]

    def ended_wrong(self, handle: RunHandle) -> int:
        """Return 0 where the wide run ended as it should, with each step's end accepted once."""
        outcomes = eventually(lambda: handle.result(timeout=30))
        done = Counter(
            event.data["task"]
            for event in eventually(handle.history)
            if event.kind == "step" and event.data["state"] == "done"
        )
        twice = sum(1 for count in done.values() if count > 1)
        return int(outcomes != list(range(WIDTH))) + twice


class Submitter:
    """Submits runs with durable="replica", one after the other, until it is told to stop.

    One that is refused is submitted again by its key until it is confirmed.
    """

    def __init__(self, stage: Stage) -> None:
        self.confirmed: list[str] = []
        self.unconfirmed = 0
        self._flow = stage.aq.get_flow("one")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="submitter")

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: len(self.confirmed) > 5, "some are confirmed")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                run = self._flow.submit(number, key=f"k{number}", durable="replica")
            except (NotReplicated, BrokerUnavailable):
                self.unconfirmed += 1
                self._stop.wait(0.02)
            else:
                self.confirmed.append(run.id)
                number += 1
                self._stop.wait(0.01)  # no more than the worker keeps up with


@contextmanager
def staged(
    kind: str, *, sentinels: int = 3, timeout: str = "1s", seconds: float = 0.1
) -> Iterator[Stage]:
    """Run a cell of its own with one worker, whose members take *seconds* each."""
    with failover_cell(sentinels=sentinels) as cell, tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger")
        settings = {"WORKER__LEASE": "2s", "WORKER__POLL": "500ms", "BROKER__TIMEOUT": timeout}
        with running("tests.support.apps.faults", cell.url, ledger, **settings) as app:
            yield Stage(cell, app, kind, seconds)


def eventually(ask: Callable[[], T], timeout: float = 60.0) -> T:
    """Return the answer of *ask*, asked again as long as the broker is unavailable."""
    until = time.monotonic() + timeout
    while True:
        try:
            return ask()
        except BrokerUnavailable:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)


def killed(trials: int, *, kind: str, sentinels: int = 3) -> list[Row]:
    """Kill the primary in the middle of a run, while a producer submits with durable="replica"."""
    lost = doubled = refused = 0
    confirmed: list[str] = []
    slowest = 0.0
    for _ in range(trials):
        with staged(kind, sentinels=sentinels) as stage:
            handle = stage.begin()
            with Submitter(stage) as producer:
                before = list(producer.confirmed)
                stage.cell.kill_primary()
                answered = stage.cell.wait_promoted()
                lost += len(stage.unknown(before))
            slowest = max(slowest, stage.resumed_after(answered))
            doubled += stage.ended_wrong(handle)
            doubled += _twice(stage.ledger.lines("begin "))
            doubled += _twice(stage.ledger.lines("quick "))
            confirmed += before
            refused += producer.unconfirmed
    note = f"{len(confirmed)} submits confirmed before the cut, {refused} tries refused"
    what = f"primary SIGKILL, Sentinel failover, {kind}"
    return [Row(35, what, trials, lost, doubled, slowest, note)]


def lost_without_replica(trials: int, *, kind: str, runs: int = 50) -> list[Row]:
    """Kill a primary whose replica lags, and submit all keys again: what it lost and what not."""
    lost = doubled = window = 0
    for _ in range(trials):
        with staged(kind, timeout="5s") as stage:
            known = _half_replicated(stage, runs)
            lost += len(stage.unknown([handle.id for handle in known]))
            eventually(partial(resume, stage.aq.store, Kind.POOL, "shared"))
            submit = stage.aq.get_flow("one").submit
            again = [eventually(partial(submit, n, key=f"k{n}")) for n in range(2 * runs)]
            lost += sum(not handle.duplicate for handle in again[:runs])
            window += sum(not handle.duplicate for handle in again)
            for number, handle in enumerate(again):
                lost += eventually(partial(handle.result, timeout=30)) != number
            doubled += _twice(stage.ledger.lines("quick "))
    note = (
        f'without durable="replica" {window} of {trials * runs} runs were not on the replica; '
        "each was taken anew by its key, and no other ran again"
    )
    what = f"primary SIGKILL, replica cut off, {kind}"
    return [Row(36, what, trials, lost, doubled, None, note)]


def _half_replicated(stage: Stage, runs: int) -> list[RunHandle]:
    """Fail over with as many runs on the replica, which are returned, as on the primary alone."""
    flow = stage.aq.get_flow("one")
    keys = [f"k{number}" for number in range(2 * runs)]
    pause(stage.aq.store, Kind.POOL, "shared")  # none runs before the failover
    known: list[RunHandle] = flow.submit_many(range(runs), keys=keys[:runs], durable="replica")
    stage.cell.cut_replica_off()
    flow.submit_many(range(runs, 2 * runs), keys=keys[runs:])
    stage.cell.kill_primary()
    stage.cell.wait_promoted()
    return known


def planned(trials: int, *, kind: str, writes_paused: bool) -> list[Row]:
    """Ask the Sentinels for a failover while the primary lives, its writes paused or not.

    Without the pause it takes writes for about a second after its replica was promoted: what ran in
    this time runs again, and what was submitted without durable="replica" is lost. That is counted
    in the note.
    """
    lost = doubled = again = 0
    slowest = 0.0
    for _ in range(trials):
        with staged(kind) as stage:
            handle = stage.begin()
            with Submitter(stage) as producer:
                before = _labels(stage)
                time.sleep(_SETTLED_S)  # that nothing of it is under way any more
                if writes_paused:
                    stage.cell.primary.client.execute_command("CLIENT", "PAUSE", 15000, "WRITE")
                stage.cell.fail_over()
                answered = stage.cell.wait_promoted()
                confirmed = list(producer.confirmed)
            slowest = max(slowest, stage.resumed_after(answered))
            lost += len(stage.unknown(confirmed))
            doubled += stage.ended_wrong(handle)
            repeated = _repeated(stage)
            settled = repeated if writes_paused else repeated & before
            doubled += len(settled)
            again += len(repeated - settled)
    note = f"{again} steps of the time between promotion and switch ran again"
    what = f"planned failover, writes {'paused' if writes_paused else 'not paused'}, {kind}"
    return [Row(37 if writes_paused else 38, what, trials, lost, doubled, slowest, note)]


def returned(trials: int, *, kind: str) -> list[Row]:
    """Start a killed primary again: it comes back as one, until the Sentinels demote it."""
    lost = doubled = 0
    slowest = 0.0
    for _ in range(trials):
        with staged(kind) as stage:
            old = stage.cell.primary
            handle = stage.begin()
            stage.cell.kill_primary()
            answered = stage.cell.wait_promoted()
            old.start()
            slowest = max(slowest, stage.resumed_after(answered))
            wait_until(lambda old=old: old.client.role()[0] == b"slave", "it is demoted", 60)  # type: ignore[misc]
            stage.cell.wait_replicated()
            doubled += stage.ended_wrong(handle) + _twice(stage.ledger.lines("begin "))
            lost += len(stage.unknown([handle.id]))
            _refused_by_a_replica(old.port)
    what = f"killed primary comes back after a failover, {kind}"
    return [Row(39, what, trials, lost, doubled, slowest, "it serves nobody and is demoted")]


def _refused_by_a_replica(port: int) -> None:
    """Write to the demoted server itself, as a client does that was not told."""
    store = Store(address=parse(f"agentq://127.0.0.1:{port}"), timeout=timedelta(seconds=1))
    with pytest.raises(BrokerUnavailable, match="is a replica and takes no writes"):
        store.call(calls.pause(store.keys.prefix, "pool:none"))
    store.close()


def _labels(stage: Stage) -> set[str]:
    """Return the steps that have ended."""
    return {f"member {line.split()[1]}" for line in stage.ledger.lines("end ")} | {
        f"quick {line.split()[1]}" for line in stage.ledger.lines("quick ")
    }


def _repeated(stage: Stage) -> set[str]:
    begun = Counter(f"member {line.split()[1]}" for line in stage.ledger.lines("begin "))
    begun.update(f"quick {line.split()[1]}" for line in stage.ledger.lines("quick "))
    return {label for label, times in begun.items() if times > 1}


def _twice(lines: list[str]) -> int:
    return sum(count - 1 for count in Counter(line.split()[1] for line in lines).values())
