"""Workers that are told to go, in time and not; and runs that are cancelled before theirs die."""

from __future__ import annotations

import signal

from tests.fault.scenarios.ground import Ground, ground, now
from tests.fault.scenarios.row import Row
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

LEASE_S = 2.0
RUNNING = 2
"""Of a worker for drains; what else it has fetched waits."""


def told_to_go(trials: int, *, kind: str, seconds: float) -> list[Row]:
    """SIGTERM a worker with tasks running and others waiting, beside one that has room."""
    slowest = 0.0
    with ground(lease=LEASE_S, WORKER__DRAIN_TIMEOUT="30s") as here:
        for _ in range(trials):
            leaving = _busy(here, kind, seconds)
            staying = here.worker(kind, slots=8)
            begun = {line.task for line in here.lines("begin ")}
            waiting = here.in_hands(leaving) - begun
            leaving.send(signal.SIGTERM)
            began = now()
            slowest = max(slowest, here.again_after(began, waiting))
            assert leaving.wait_ended(30) == 0
            wait_until(lambda: not here.waiting(), "all end", 30)
            assert staying.stop() == 0
        lost, doubled = here.ended(workers=0)
    note = "to the start of the last unstarted one elsewhere; no task began twice"
    return [Row(23, f"SIGTERM, {kind}", trials, lost, doubled, slowest, note)]


def killed_while_draining(trials: int, *, kind: str, after: float) -> list[Row]:
    """SIGTERM, and SIGKILL *after* seconds, while tasks run that take longer."""
    slowest = 0.0
    with ground(lease=LEASE_S, WORKER__DRAIN_TIMEOUT="60s") as here:
        for _ in range(trials):
            leaving = _busy(here, kind, after + 8)
            staying = here.worker(kind, slots=8)
            leaving.send(signal.SIGTERM)
            told = now()
            wait_until(lambda told=told: now() > told + after, "time to be killed", after + 5)  # type: ignore[misc]
            leaving.kill()
            killed, held = now(), here.hit(leaving)
            slowest = max(slowest, here.again_after(killed, held))
            wait_until(lambda: not here.waiting(), "all end", after + 60)
            assert staying.stop() == 0
        lost, doubled = here.ended(workers=0)
    what = f"SIGTERM, SIGKILL after {after:g} s, {kind}"
    return [Row(23, what, trials, lost, doubled, slowest, f"lease {LEASE_S:g} s")]


def _busy(here: Ground, kind: str, seconds: float) -> WorkerProcess:
    """Start a worker that runs two tasks and has been given work for more."""
    before = len(here.lines("begin "))
    worker = here.worker(kind, slots=RUNNING)
    here.send(RUNNING + 4, seconds)
    here.until("begin", before + RUNNING)
    return worker


def cancelled(trials: int, *, kind: str, width: int = 20) -> list[Row]:
    """Cancel a run of which some members run, kill its worker, and start another."""
    ran = 0
    with ground(lease=LEASE_S) as here:
        for trial in range(trials):
            before = len(here.lines("begin "))
            worker = here.worker(kind, slots=4)
            handle = here.app.fan.submit([f"cancelled{trial}", width, 30.0])
            here.until("begin", before + 3)
            handle.cancel()
            worker.kill()
            killed = now()
            after = here.worker(kind)
            wait_until(lambda: not here.waiting(), "nothing of it is left", 30)
            here.answers()
            assert handle.status().state == "cancelled"
            late = [x for x in here.lines("begin ") if x.at > killed and "cancelled" in x.label]
            ran += len(late)
            # A child of billiard's waits 30 s for its parent to read a result that came with the signal.
            assert after.stop(45) == 0
        lost, doubled = here.ended(workers=0)
    what = f"run of {width} cancelled, kill -9, restart, {kind}"
    note = f"{ran} steps of it ran after the restart"
    return [Row(24, what, trials, lost, doubled + ran, None, note)]
