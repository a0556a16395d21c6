"""Processes that end by SIGKILL: a pool's child, a worker, one worker after the other."""

from __future__ import annotations

import os
import random
import signal
import time

from tests.fault.scenarios.ground import Ground, ground, now
from tests.fault.scenarios.row import Row
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

LEASE_S = 2.0
SWEEP_S = 2.0
"""What is held by the dead starts elsewhere within a lease and this."""
NOISE_S = 4.0
"""For a machine that does other work beside."""

_SEED = 20


def pool_child(trials: int, *, tasks: int = 100) -> list[Row]:
    """Kill busy children of a prefork pool, with *tasks* for each kill."""
    slowest = 0.0
    with ground(lease=LEASE_S) as here:
        worker = here.worker("prefork")
        here.send(tasks * trials)
        for _ in range(trials):
            here.until("end", len(here.lines("end ")) + tasks // 5, within=60)
            slowest = max(slowest, kill_child(here, worker))
        lost, doubled = here.ended(workers=1)
    return [Row(1, "kill -9 of a prefork child", trials, lost, doubled, slowest)]


def kill_child(here: Ground, worker: WorkerProcess) -> float:
    """Kill a child that runs a task; stopped first, so that what it holds is known."""
    pid = _busy_child(here, worker)
    os.kill(pid, signal.SIGSTOP)
    held = here.hit(worker, pid)
    killed = now()
    os.kill(pid, signal.SIGKILL)
    return here.again_after(killed, held)


def _busy_child(here: Ground, worker: WorkerProcess) -> int:
    return wait_until(lambda: _running(here, worker), "a child runs a task")[-1]


def _running(here: Ground, worker: WorkerProcess) -> list[int]:
    """Return the processes of a worker that run something, one for each task."""
    ended = {line.label for line in here.lines("end ")}
    running = [line.pid for line in here.lines("begin ") if line.label not in ended]
    return [pid for pid in running if _group(pid) == worker.pid]


def worker_main(trials: int, *, kind: str) -> list[Row]:
    """Kill a whole worker that holds tasks, beside one that has room."""
    slowest = 0.0
    with ground(lease=LEASE_S) as here:
        victim, other = here.worker(kind), here.worker(kind)
        for _ in range(trials):
            here.send(8, 1.0)
            wait_until(lambda victim=victim: _running(here, victim), "it runs some")  # type: ignore[misc]
            victim.kill()
            killed = now()
            held = here.hit(victim)
            took = here.again_after(killed, held, LEASE_S + SWEEP_S + NOISE_S)
            slowest = max(slowest, took)
            victim, other = other, here.worker(kind)
        lost, doubled = here.ended(workers=2)
    note = f"lease {LEASE_S:g} s"
    return [Row(2, f"kill -9 of a worker, {kind}", trials, lost, doubled, slowest, note)]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def busy_workers(trials: int, *, kind: str) -> list[Row]:
    """Kill one of two workers again and again, at random moments, each in the middle of runs."""
    chance = random.Random(_SEED)  # noqa: S311 -- a seed repeats a failure
    slowest = 0.0
    with ground(lease=LEASE_S) as here:
        workers = [here.worker(kind), here.worker(kind)]
        for kill in range(trials):
            here.submit(30, 0.1)
            here.send(10, 0.1)
            victim = workers[kill % 2]
            wait_until(lambda victim=victim: _running(here, victim), "it is busy", 60)  # type: ignore[misc]
            time.sleep(chance.random() * 0.1)
            victim.kill()
            killed = now()
            held = here.hit(victim)
            workers[kill % 2] = here.worker(kind)
            slowest = max(slowest, here.again_after(killed, held))
        lost, doubled = here.ended(workers=2)
    bound = f"below {300 / trials:.1f} % a kill with 95 % confidence"
    return [
        Row(3, f"random kill -9 of a busy worker, {kind}", trials, lost, doubled, slowest, bound)
    ]
