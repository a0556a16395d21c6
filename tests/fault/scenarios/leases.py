"""Steps that take longer than a lease, and processes that stand still for longer than theirs."""

from __future__ import annotations

import os
import re
import signal
import time
from uuid import uuid4

from tests.fault.scenarios.ground import Ground, ground, now
from tests.fault.scenarios.row import Row
from tests.support.waiting import wait_until

LEASE_S = 1.0


def long_steps(trials: int, *, kind: str, leases: int) -> list[Row]:
    """Run steps of many leases, beside a worker that has room for them."""
    with ground(lease=LEASE_S) as here:
        here.worker(kind), here.worker(kind)
        here.send(2 * trials, leases * LEASE_S)
        lost, doubled = here.ended(workers=2, within=60 + trials * leases * LEASE_S)
    return [Row(12, f"steps of {leases} leases, {kind}", 2 * trials, lost, doubled)]


def frozen(trials: int, *, kind: str) -> list[Row]:
    """Stop a worker for longer than its lease; its steps end elsewhere; let it go on."""
    slowest = 0.0
    with ground(lease=LEASE_S) as here:
        workers = [here.worker(kind), here.worker(kind)]
        for _ in range(trials):
            begun = len(here.lines("begin "))
            here.submit(8, 0.5)
            here.until("begin", begun + 3)
            victim = max(workers, key=lambda worker: len(here.in_hands(worker)))
            os.killpg(victim.pid, signal.SIGSTOP)
            try:
                held = here.hit(victim)
                slowest = max(slowest, here.again_after(now(), held))
                wait_until(lambda: not here.waiting(), "all end elsewhere", 40)
            finally:
                os.killpg(victim.pid, signal.SIGCONT)
            here.answers()
        assert all(worker.alive() for worker in workers)
        lost, doubled = here.ended(workers=2)
    note = f"what it wrote afterwards was refused; lease {LEASE_S:g} s"
    return [Row(13, f"a worker stopped and woken, {kind}", trials, lost, doubled, slowest, note)]


def gil_held(trials: int, *, seconds: float) -> list[Row]:
    """Let a step hold the GIL of its worker for longer than the lease, beside others."""
    slowest = 0.0
    letters = _letters_for(seconds)
    with ground(lease=LEASE_S, WORKER__HANG_TIMEOUT="500ms") as here:
        workers = [here.worker(), here.worker()]
        for _ in range(trials):
            label = uuid4().hex[:12]
            here.send(6, 1.5)
            here.app.holds_gil.apply_async((label, letters), task_id=label)
            here.expect(label, label)
            line = wait_until(
                lambda label=label: next(
                    (x for x in here.lines("begin ") if x.label == label), None
                ),  # type: ignore[misc]
                "it begins",
            )
            victim = next(worker for worker in workers if worker.pid == line.pid)
            held = here.hit(victim)
            slowest = max(slowest, here.again_after(now(), held))
            wait_until(lambda label=label: _ends(here, label) == 2, "the hung one goes on", 60)  # type: ignore[misc]
        assert all(worker.alive() for worker in workers)
        lost, doubled = here.ended(workers=2)
    note = f"its neighbours ended elsewhere; lease {LEASE_S:g} s"
    return [Row(34, f"GIL held for {seconds:g} s", trials, lost, doubled, slowest, note)]


def _ends(here: Ground, label: str) -> int:
    return sum(line.label == label for line in here.lines("end "))


def _letters_for(seconds: float) -> int:
    """Return for how many letters the bad regex takes about *seconds*: each doubles it."""
    letters, took = 16, 0.0
    while took < 0.05:
        letters += 1
        began = time.monotonic()
        re.match(r"(a+)+$", "a" * letters + "b")
        took = time.monotonic() - began
    while took < seconds:
        letters, took = letters + 1, took * 2
    return letters
