"""Store clients that fail, in workers and producers: by seed, at each call, in every way a call can.

Runs that fan out, plain tasks of both kinds, retries, delays and chords; the producers go on asking
with the same key or id, as they are told to. What must hold at the end: each run and task ended
once, each body ran once, each effect is there, and nothing is left in Redis.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar
from uuid import uuid4

import orjson
from celery import chord

from agentq.errors import BrokerUnavailable
from agentq.runs.record import events_of
from agentq.store.keys import Keys
from tests.fault.scenarios.row import Row
from tests.support.ledger import Ledger
from tests.support.redis_server import Server, private_server
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.store_faults import NOTED, VARIABLE, StoreFaults, injected
from tests.support.waiting import wait_until

T = TypeVar("T")
Kind = Literal["agentq", "prefork"]

APP = "tests.support.apps.stormy"
WIDTH = 6
"""Members of a run's fan-out."""
HEADER = 3
"""Members of a chord's header."""
WORKERS = ("first", "second")
OPTIONS = {
    "agentq": (*BOTH_POOLS, "-c", "8"),  # few slots: many calls
    "prefork": (*BOTH_POOLS, "-P", "prefork", "-c", "2"),
}
KINDS: tuple[tuple[int, float, Kind], ...] = (
    (27, 0.01, "agentq"), (28, 0.1, "agentq"), (30, 0.1, "prefork"),
)  # fmt: skip
"""Row of the matrix, the share of calls that fail, and whose workers they are."""
SEED = 30
"""With it a worker's first calls fail too, at 10 %."""
PRODUCERS = 3
"""Threads that submit."""

_ENDING_S = 60.0
_MEASURED = {"WORKER__LEASE": "4s", "WORKER__POLL": "500ms"}


@dataclass
class Work:
    """What the producers were told is accepted."""

    runs: list[str] = field(default_factory=list)
    tasks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Id of a task and the lines that it must leave."""
    chords: list[str] = field(default_factory=list)
    """Tags of the bodies; a chord has no id of its own, so each try is another chord."""


def seeded(*, work: int = 600) -> list[Row]:
    """Do both rates in full, on a server of their own."""
    with private_server() as server, TemporaryDirectory() as folder:
        return [
            store_faults(server, Path(folder), number=number, rate=rate, work=work, kind=kind)
            for number, rate, kind in KINDS
        ]


def store_faults(
    server: Server, folder: Path, *, number: int, rate: float, work: int, kind: Kind
) -> Row:
    """Inject faults at *rate* into two workers and their producers, who hand over *work* things."""
    ledger = Ledger(folder / f"ledger-{number}")
    cell = uuid4().hex[:12]
    with running(APP, f"{server.url}?cell={cell}", ledger, **_MEASURED) as app:
        # Celery's own pools make no retries of steps, and note no steps in a run's events.
        app.variables["AQ_TEST_FAILING"] = "5" if kind == "agentq" else "0"
        for name in WORKERS:
            app.variables[VARIABLE] = StoreFaults(f"{SEED} {name}", rate).variable()
            app.worker(name, options=OPTIONS[kind])
        with injected(StoreFaults(f"{SEED} producer", rate)):
            accepted = _produced(app, work)
            app.app.aq.store.close()  # the next one is not faulty
        check = Check(server, cell, ledger, accepted, steps_noted=kind == "agentq")
        wait_until(check.ended, check.missing, timeout=_ENDING_S)
        lost, doubled = check.lost(), check.doubled()
        note = check.repeated()
        app.app.app.backend.client.close()
    faults = Counter(line.split()[1] for line in ledger.lines(f"{NOTED} "))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    return Row(
        number=number,
        fault=f"store calls fail by seed, {rate:.0%}, {kind}",
        tried=sum(faults.values()),
        lost=lost,
        doubled=doubled,
        note=f"{kinds}; {note}",
    )


def _produced(app: Running, work: int) -> Work:
    done, module = Work(), app.app

    def produce(place: int) -> None:
        tag = f"t{place}"
        match place % 6:
            case 0:
                handle = _sure(lambda: module.fan.submit(WIDTH, key=tag, tenant="a", deadline="5m"))
                done.runs.append(handle.id)
            case 1:
                done.runs.append(_sure(lambda: asyncio.run(_asubmitted(module, tag))))
            case 2:
                done.tasks[tag] = (f"plain {tag}",)
                _sure(lambda: module.plain.apply_async((tag,), task_id=tag))
            case 3:
                done.tasks[tag] = (f"threaded {tag}",)
                _sure(lambda: module.threaded.apply_async((tag,), task_id=tag, countdown=0.5))
            case 4:
                done.tasks[tag] = tuple(f"again {tag} {retries}" for retries in range(3))
                _sure(lambda: module.again.apply_async((tag,), task_id=tag))
            case _:
                done.chords.append(_sure(lambda: _chord(module, tag)))

    with ThreadPoolExecutor(PRODUCERS) as threads:
        list(threads.map(produce, range(work)))
    return done


async def _asubmitted(module: Any, key: str) -> str:
    try:
        return str((await module.fan.asubmit(WIDTH, key=key, deadline="5m")).id)
    finally:
        await module.aq.aclose()


def _chord(module: Any, tag: str) -> str:
    tag = f"{tag}-{uuid4().hex[:6]}"
    chord([module.plain.s(f"{tag}-{place}") for place in range(HEADER)])(module.gathered.s(tag))
    return tag


def _sure(submit: Callable[[], T]) -> T:
    """Return what *submit* returns, asked again with the same id until it is accepted."""
    answer: list[T] = []

    def accepted() -> bool:
        try:
            answer.append(submit())
        except BrokerUnavailable:
            return False
        return True

    wait_until(accepted, "a submit is accepted", timeout=_ENDING_S)
    return answer[0]


class Check:
    """Counts what came of *work*, in the ledger and, by a client without faults, in Redis."""

    def __init__(
        self, server: Server, cell: str, ledger: Ledger, work: Work, *, steps_noted: bool
    ) -> None:
        self._server = server
        self._cell = cell
        self._keys = Keys(cell)
        self._ledger = ledger
        self._work = work
        self._steps = WIDTH + 2 if steps_noted else 0

    def ended(self) -> bool:
        return not self._open() and not self._left()

    def missing(self) -> str:
        return f"everything has ended: {self._open()[:9]} are open, {self._left()} is left"

    def lost(self) -> int:
        """Return how many results, effects and bodies are not there, and what is left over."""
        counts = self._ledger.counts()
        wanted = [line for lines in self._work.tasks.values() for line in lines]
        wanted += [f"gathered {tag}" for tag in self._work.chords]
        wanted += [f"plain {tag}-{n}" for tag in self._work.chords for n in range(HEADER)]
        for run in self._work.runs:
            wanted += [f"plan {run}", f"total {run}", *(f"found {run} {n}" for n in range(WIDTH))]
        wrong = sum(self._result(run) != sum(range(WIDTH)) for run in self._work.runs)
        missing = [line for line in wanted if not counts[line]]
        kept = self._server.keys_left(self._cell)
        return wrong + len(missing) + len(kept) + len(self._left()) + len(self._open())

    def doubled(self) -> int:
        """Return how many bodies, ends and accepted outcomes there are beyond one each."""
        bodies = self._ledger.counts("total ") + self._ledger.counts("gathered ")
        beyond = sum(bodies.values()) - len(bodies)
        for run in self._work.runs:
            events = self._events(run)
            done = Counter(
                event.data["task"]
                for event in events
                if event.kind == "step" and event.data["state"] == "done"
            )
            ends = sum(event.kind == "end" for event in events)
            beyond += abs(sum(done.values()) - self._steps) + abs(ends - 1)
        return beyond

    def repeated(self) -> str:
        """Return how many attempts were made again although none of them had failed."""
        counts = self._ledger.counts()
        again = sum(
            count - 1
            for line, count in counts.items()
            if not line.startswith((NOTED, "member ")) and count > 1
        )
        return f"attempts made again: {again} of {counts.total()}"

    def _open(self) -> list[str]:
        client, keys = self._server.client, self._keys
        states = [(run, client.hget(keys.run(run), "state")) for run in self._work.runs]
        found = [run for run, state in states if state == b"running"]
        found += [
            task
            for task in self._work.tasks
            if orjson.loads(client.get(keys.result(task)) or b"{}").get("status") != "SUCCESS"
        ]
        bodies = self._ledger.counts("gathered ")
        return found + [tag for tag in self._work.chords if not bodies[f"gathered {tag}"]]

    def _left(self) -> list[str]:
        """Return the tables and queues that are not empty."""
        client, prefix = self._server.client, self._keys.prefix
        found = list(self._server.streams(self._cell))
        tables = ("delayed", "delayed:m", "due", "tenants", "parked", "dead")
        return found + [name for name in tables if client.exists(prefix + name)]

    def _events(self, run: str) -> list[Any]:
        entries = self._server.client.xrange(self._keys.events(run))
        return [event for id_, fields in entries for event in events_of(id_, fields)]

    def _result(self, run: str) -> Any:
        return orjson.loads(self._server.client.hget(self._keys.run(run), "result") or b"null")
