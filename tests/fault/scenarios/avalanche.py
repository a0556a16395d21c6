"""No avalanche: half of the workers are killed at 90 % load, and what the steps ask fails meanwhile.

What fails then must not be asked ever more often: retries stay within the budget of their pool. What
the dead held is free within a lease, the living do what they can, and the backlog drains.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from agentq.store.keys import Keys
from tests.fault.scenarios.row import Row
from tests.support.ledger import Ledger
from tests.support.redis_server import Server, private_server
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until

APP = "tests.support.apps.avalanche"
SLOTS = 6
HOLD_S = 0.3
"""How long a step takes."""
DEPENDENCY = "AQ_TEST_DEPENDENCY"
LEASE_S = 2.0
LOAD = 0.9
PERCENT = 20
_TICK_S = 0.1
_DRAIN_S = 90.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done: *dead_s* is how long *half* of the workers, so many, are gone.

    failing: the share of calls that the dependency fails meanwhile. least: `retry.per_second`.
    """

    half: int
    warm_s: float
    dead_s: float
    failing: float
    least: int

    @property
    def victims(self) -> list[str]:
        return [f"victim{number}" for number in range(self.half)]

    @property
    def living(self) -> list[str]:
        return [f"living{number}" for number in range(self.half)]

    @property
    def capacity(self) -> float:
        """Steps a second of one half."""
        return self.half * SLOTS / HOLD_S


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the ledger."""

    kind: str
    number: int
    attempt: int
    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class Avalanche:
    """What was counted; times are seconds of this machine's clock.

    starts: attempts that began. retries: of them, those of what had begun before and was not held by
    the dead. allowed: how many the budget has for so many attempts. goodput: what ended well while
    half of the workers were dead, of what the living could, given what the dependency let through.
    """

    plan: Plan
    submitted: int
    ended: Counter[int]
    starts: int
    retries: int
    held: int
    allowed: float
    free_s: float
    goodput: float
    drained_s: float
    left: list[str]

    def row(self, number: int) -> Row:
        doubled = sum(self.ended.values()) - len(self.ended)
        beyond = max(0, self.retries - int(self.allowed))
        return Row(
            number=number,
            fault=f"half of the workers killed at {LOAD:.0%} load, a dependency fails {self.plan.failing:.0%}",
            tried=self.plan.half,
            lost=self.submitted - len(self.ended) + len(self.left),
            doubled=doubled + beyond,
            recovery_s=round(self.free_s, 2),
            note=f"retries {self.retries} of {self.starts} attempts, allowed {self.allowed:.0f}; "
            f"goodput {self.goodput:.0%} of the living's share; drained in {self.drained_s:.1f} s",
        )


NUMBER = 29
"""Row of the matrix."""

IN_FULL = Plan(half=2, warm_s=10, dead_s=12, failing=0.5, least=1)


def halved() -> list[Row]:
    """Do it in full, on a server of its own."""
    with private_server() as server, TemporaryDirectory() as folder:
        return [avalanche(server, Path(folder), IN_FULL).row(NUMBER)]


def avalanche(server: Server, folder: Path, plan: Plan) -> Avalanche:
    """Load all workers, kill half of them, bring them back, let the backlog drain."""
    ledger, cell = Ledger(folder / "ledger"), uuid4().hex[:12]
    fails = folder / "fails"
    settings = {"WORKER__LEASE": f"{LEASE_S}s", "RETRY__PER_SECOND": str(plan.least)}
    with running(APP, f"{server.url}?cell={cell}", ledger, **settings) as app:
        app.variables |= {DEPENDENCY: str(fails), "AQ_TEST_SECONDS": str(HOLD_S)}
        options = (*BOTH_POOLS, "-c", str(SLOTS))
        victims = [app.worker(name, options=options) for name in plan.victims]
        for name in plan.living:
            app.worker(name, options=options)
        with ThreadPoolExecutor(1) as thread:
            load = _Load(app, 2 * plan.capacity * LOAD)
            submitting = thread.submit(load.run)
            load.wait(plan.warm_s)
            fails.write_text(str(plan.failing))
            killed = time.time()
            for victim in victims:
                victim.kill()
            load.wait(plan.dead_s)
            back = time.time()
            fails.unlink()
            for victim in victims:
                victim.start()
            load.stop()
            submitted = submitting.result()
        stopped = time.monotonic()
        prefix = Keys(cell).prefix

        def left() -> list[str]:
            tables = [
                name
                for name in ("delayed:m", "tokens", "due")
                if server.client.exists(prefix + name)
            ]
            return [*server.streams(cell), *tables]

        wait_until(lambda: not left(), lambda: f"it drains: {left()}", _DRAIN_S)
        drained_s = time.monotonic() - stopped
    lines = [_line(text) for text in ledger.lines() if text.startswith(("start ", "done "))]
    return _counted(plan, lines, submitted, killed, back, drained_s, left())


class _Load:
    """Submits at a steady rate until it is told to stop."""

    def __init__(self, app: Running, rate: float) -> None:
        self._flow = app.app.work
        self._rate = rate
        self._stopped = False

    def run(self) -> int:
        began, submitted = time.monotonic(), 0
        while not self._stopped:
            due = int((time.monotonic() - began) * self._rate)
            if due > submitted:
                self._flow.submit_many(range(submitted, due))
                submitted = due
            time.sleep(_TICK_S)
        return submitted

    def stop(self) -> None:
        self._stopped = True

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)  # the load is what goes on meanwhile


def _line(text: str) -> Line:
    kind, number, attempt, worker, at = text.split()
    return Line(kind, int(number), int(attempt), worker.partition("@")[0], float(at))


def _counted(  # noqa: PLR0913, PLR0917 -- what was measured
    plan: Plan,
    lines: list[Line],
    submitted: int,
    killed: float,
    back: float,
    drained_s: float,
    left: list[str],
) -> Avalanche:
    starts = [line for line in lines if line.kind == "start"]
    done = [line for line in lines if line.kind == "done"]
    ended_before = {(line.number, line.attempt) for line in done}
    held = {
        line.number
        for line in starts
        if line.worker in plan.victims
        and line.at < killed
        and killed - line.at < HOLD_S
        and (line.number, line.attempt) not in ended_before
    }
    again = {
        number: min(
            (one.at for one in starts if one.number == number and one.at > killed), default=back
        )
        for number in held
    }
    share = plan.capacity * (1 - plan.failing)
    in_time = sum(killed <= line.at < back for line in done)
    attempts = Counter(line.number for line in starts)
    retries = sum(attempts.values()) - len(attempts) - len(held)
    return Avalanche(
        plan=plan,
        submitted=submitted,
        ended=Counter(line.number for line in done),
        starts=len(starts),
        retries=retries,
        held=len(held),
        allowed=len(starts) * PERCENT / 100 + plan.least * 10,
        free_s=max(again.values(), default=killed) - killed,
        goodput=in_time / (share * (back - killed)),
        drained_s=drained_s,
        left=left,
    )
