"""The faults of a soak, done to a fleet of workers and its server by one thread, the main one.

A step may begin again, and only once, for each time that its worker was killed or stopped while
Redis had it in that worker's hands: those are noted in `explained`. Nothing else explains a second
beginning: no restart or standstill of the server, and no lost reply.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.fault.scenarios.ground import KINDS, Ground, now
from tests.fault.soak.plan import Fault, Plan
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

SLOTS = {"ours": 40, "prefork": 4}

_STARTS_S = 120.0
"""How long a start may take: Celery's consumer asks some thirty things, and any reply may be lost."""
_LOOKS_S = (0.0, 0.1, 0.3)
"""When to look what a process held: a request may be on its way when it is killed or stopped."""


@dataclass(slots=True)
class _Place:
    """Where one worker after the other works; *next* is being started."""

    kind: str
    worker: WorkerProcess
    next: Future[WorkerProcess] | None = None


@dataclass(slots=True)
class Chaos:
    """Does the faults of a plan, from the main thread: a server ends with the thread that started it."""

    here: Ground
    plan: Plan
    link: Proxy
    logs: Path | None = None
    """Where the workers' logs are kept."""
    done: Counter[str] = field(default_factory=Counter)
    """How often each fault was done."""
    explained: Counter[str] = field(default_factory=Counter)
    """By task id, how often a fault explains that it begins again."""
    fallen: list[str] = field(default_factory=list)
    """What workers said that ended by themselves."""
    residents: dict[str, WorkerProcess] = field(default_factory=dict)
    _places: list[_Place] = field(default_factory=list)
    _chance: random.Random = field(init=False)
    _starter: ThreadPoolExecutor = field(init=False)
    _started: int = 0
    _frozen: WorkerProcess | None = None
    _thaw_at: float = 0.0
    _unasked: list[WorkerProcess] = field(default_factory=list)
    """Killed while the server stood still: what they held is asked when it goes on."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.plan.seed + 1)  # noqa: S311 -- a seed repeats a failure
        self._starter = ThreadPoolExecutor(len(self.plan.mortals), "starter")

    @property
    def workers(self) -> list[WorkerProcess]:
        """All that live, once every place is taken."""
        return [*self.residents.values(), *(place.worker for place in self._places)]

    def start(self) -> None:
        """Start the fleet."""
        starts = {kind: self._starting(kind) for kind in self.plan.residents}
        mortals = [(kind, self._starting(kind)) for kind in self.plan.mortals]
        self.residents = {kind: start.result() for kind, start in starts.items()}
        self._places = [_Place(kind, start.result()) for kind, start in mortals]

    def run(self, began: float) -> None:
        """Do each fault at its time; return when the last one's time is over."""
        self._until(began + self.plan.calm)
        self.link.share, self.link.losing = self.plan.lose, b"*"  # each request begins with one
        for at, fault in self.plan.faults():
            self._until(began + at)
            self._do(fault)
        self._until(began + self.plan.seconds)

    def end(self) -> None:
        """Let everything go on as it should, with every place taken."""
        if self._thaw_at:
            self._until(self._thaw_at)
        self.link.losing = b""
        wait_until(
            lambda: all(self._taken(place) for place in self._places), "a whole fleet", _STARTS_S
        )
        self.fallen += [worker.log() for worker in self.workers if not worker.alive()]
        self._starter.shutdown()

    def close(self) -> None:
        """Keep the logs of those that live."""
        for worker in self.workers:
            self._keep_log(worker)

    def _until(self, moment: float) -> None:
        """Wait; what stands still goes on meanwhile when its time has come."""
        if 0 < self._thaw_at <= moment:
            time.sleep(max(0.0, self._thaw_at - now()))
            self._thaw()
        time.sleep(max(0.0, moment - now()))

    def _do(self, fault: Fault) -> None:
        # One standstill at a time, and none while the server restarts.
        if fault != "kill" and self._thaw_at:
            self._until(self._thaw_at)
        match fault:
            case "kill":
                self._kill()
            case "restart":
                self._restart()
            case "freeze":
                self._freeze()

    def _kill(self) -> None:
        ready = [x for x in self._places if self._taken(x) and x.worker is not self._frozen]
        if not ready:  # all are being replaced
            return
        place = self._chance.choice(ready)
        victim = place.worker
        if victim.alive():
            victim.kill()
        else:
            self.fallen.append(victim.log())
        self._keep_log(victim)
        if self._server_stands_still():
            self._unasked.append(victim)
        else:
            self._explain(victim)
        place.next = self._starting(place.kind)
        self.done["workers killed"] += 1

    def _taken(self, place: _Place) -> bool:
        """Tell whether a worker is there; its successor takes the place when it has started."""
        if place.next is None or not place.next.done():
            return place.next is None
        if (error := place.next.exception()) is not None:
            self.fallen.append(str(error))
            place.next = self._starting(place.kind)
            return False
        place.worker, place.next = place.next.result(), None
        return True

    def _keep_log(self, worker: WorkerProcess) -> None:
        if self.logs is not None:
            (self.logs / f"{worker.options[1]}.log").write_text(worker.log())
        worker.close()

    def _restart(self) -> None:
        if self.done["restarts"] % 2 == 0:
            self.here.server.kill()
            self.here.server.start()
        else:
            self.here.server.restart()
        self.done["restarts"] += 1

    def _freeze(self) -> None:
        """Stop the server or one worker, in turns."""
        if self.done["server frozen"] <= self.done["worker frozen"]:
            os.kill(self._server_pid(), signal.SIGSTOP)
            self.done["server frozen"] += 1
        else:
            places = [place.worker for place in self._places if self._taken(place)]
            self._frozen = self._chance.choice([*self.residents.values(), *places])
            os.killpg(self._frozen.pid, signal.SIGSTOP)
            self._explain(self._frozen)
            self.done["worker frozen"] += 1
        self._thaw_at = now() + self.plan.freeze

    def _thaw(self) -> None:
        self._thaw_at = 0.0
        if self._frozen is not None:
            os.killpg(self._frozen.pid, signal.SIGCONT)
            self._frozen = None
        else:
            os.kill(self._server_pid(), signal.SIGCONT)
            while self._unasked:
                self._explain(self._unasked.pop())

    def _server_stands_still(self) -> bool:
        return self._thaw_at > 0 and self._frozen is None

    def _server_pid(self) -> int:
        pid = self.here.server.embedded.pid
        assert pid is not None
        return pid

    def _explain(self, worker: WorkerProcess) -> None:
        held: set[str] = set()
        began = now()
        for look in _LOOKS_S:
            time.sleep(max(0.0, began + look - now()))
            held |= self.here.in_hands(worker)
        self.explained.update(held)

    def _starting(self, kind: str) -> Future[WorkerProcess]:
        self._started += 1
        options = (*KINDS[kind], "-c", str(SLOTS[kind]))
        worker = self.here.running.new_worker(f"{kind}{self._started}", options=options)
        return self._starter.submit(_started, worker)


def _started(worker: WorkerProcess) -> WorkerProcess:
    worker.start(within=_STARTS_S)
    return worker
