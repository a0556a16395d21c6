"""Chords and groups whose workers die on the way, or whose messages come twice."""

from __future__ import annotations

from typing import Literal

from tests.fault.scenarios.ground import Ground, ground, now
from tests.fault.scenarios.kills import LEASE_S, kill_child
from tests.fault.scenarios.row import Row
from tests.support.apps.matrix import DIE_AFTER
from tests.support.waiting import wait_until

Whom = Literal["child", "worker"]


def killed_half_way(trials: int, *, kind: str, whom: Whom, width: int = 200) -> list[Row]:
    """Kill a child or the whole of a worker when half of a chord's header has ended."""
    slowest = 0.0
    with ground(lease=LEASE_S) as here:
        workers = [here.worker(kind), here.worker(kind)]
        for trial in range(trials):
            ended = len(here.lines("end "))
            here.chord(width, 0.01)
            here.until("end", ended + width // 2)
            victim = workers[trial % 2]
            if whom == "child":
                slowest = max(slowest, kill_child(here, victim))
            else:
                victim.kill()
                killed, held = now(), here.hit(victim)
                workers[trial % 2] = here.worker(kind)
                slowest = max(slowest, here.again_after(killed, held))
        lost, doubled = here.ended(workers=2)
        note = _bodies(here, trials)
    what = f"chord of {width}, {whom} killed half way, {kind}"
    return [Row(9, what, trials, lost, doubled, slowest, note)]


def killed_at_the_count(trials: int, *, kind: str, whom: Whom) -> list[Row]:
    """End a process when the last result of a header is stored, and nothing else is done yet."""
    slowest = 0.0
    with ground(lease=LEASE_S) as here:
        here.running.variables[DIE_AFTER] = whom
        worker = here.worker(kind)
        for trial in range(trials):
            body = here.chord(4, 0.01, last=".die")
            wait_until(lambda trial=trial: len(here.lines("died ")) > trial, "it dies")  # type: ignore[misc]
            died = here.lines("died ")[-1]
            if whom == "worker":
                worker.wait_ended()
                here.hit(worker)
                worker = here.worker(kind)
            else:
                here.hit(worker, died.pid)
            slowest = max(slowest, _body_after(here, died.at, body))
        lost, doubled = here.ended(workers=1)
        note = _bodies(here, trials)
    what = f"chord, {whom} dies between last result and body, {kind}"
    return [Row(10, what, trials, lost, doubled, slowest, note)]


def _body_after(here: Ground, moment: float, body: str) -> float:
    """Return how many seconds after *moment* a body begins; it may have done so before."""
    found = wait_until(
        lambda: [line.at for line in here.lines("begin ") if line.label == body], "the body", 40
    )
    return max(0.0, min(found) - moment)


def delivered_twice(trials: int, *, kind: str, width: int = 40, twice: int = 5) -> list[Row]:
    """Put some header messages of a chord into their queue a second time."""
    with ground(lease=LEASE_S) as here:
        for _ in range(trials):
            here.chord(width, 0.01)
        stream = here.keys.stream("shared", "normal")
        entries = here.redis.xrange(stream)
        for trial in range(trials):
            for _, fields in entries[trial * width : trial * width + twice]:
                here.redis.xadd(stream, fields)
                here.explain(fields[b"i"].decode())
        here.worker(kind)
        lost, doubled = here.ended(workers=1)
        given = [here.stored(body) for body in here.bodies()]
        lost += sum(width - count for count in given)
        note = f"{_bodies(here, trials)}, given {sorted(set(given))} distinct results of {width}"
    what = f"{twice} header messages of a chord twice, {kind}"
    return [Row(11, what, trials, lost, doubled, None, note)]


def _bodies(here: Ground, trials: int) -> str:
    return f"{len(here.bodies())} of {trials} bodies"
