"""One scene's cell: a producer, one worker of ours, and what a test may do at their functions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agentq.broker import envelope, publisher
from agentq.flows import compiler
from agentq.store import calls, effects
from agentq.store.address import parse
from agentq.store.calls import Call
from agentq.store.client import Store
from agentq.store.effects import Effect, Message
from agentq.worker.hands import Hands
from agentq.worker.joined import JoinReader
from agentq.worker.sidecar import TaskEvents
from tests.contract.wire.frozen import NOW_MS
from tests.contract.wire.snapshot import dumped, shown

HOST = "w@host"
WORKER = f"{HOST}#00000000"
LEASE_MS = 1000
KEEP_MS = 604_800_000

_TRACEBACK = re.compile(rb'"traceback":"(?:[^"\\]|\\.)*"')
"""Has paths of this machine and lines of files that change; the one thing that is not recorded."""


class Recorder(Store):
    """A cell that notes what its functions were called with and what they answered."""

    def __init__(self, url: str, cell: str) -> None:
        super().__init__(address=parse(f"{url}?cell={cell}"), timeout=None)
        self.noted: list[dict[str, Any]] = []

    def call(self, call: Call) -> Any:
        sent = [
            _TRACEBACK.sub(b'"traceback":"..."', one) if isinstance(one, bytes) else one
            for one in call
        ]
        answer = self.client.execute_command(*sent)
        if sent[0] == "FCALL":
            self.noted.append({"call": shown(sent[1:]), "answer": shown(answer)})
        return answer

    def pipeline(self, calls: Any) -> list[Any]:
        return [self.call(call) for call in calls]


class _Clock:
    def now_ms(self, _: float) -> int:
        return NOW_MS


class _Cell:
    def __init__(self, store: Store) -> None:
        self.store = store

    async def call(self, call: Call) -> Any:
        return self.store.call(call)


class World:
    """One scene's cell, with a producer and one worker."""

    def __init__(self, url: str, scene: str, app: ModuleType) -> None:
        self.app = app
        self.store = Recorder(url, scene)
        self.prefix = self.store.keys.prefix
        app.aq.__dict__["store"] = self.store
        app.app.backend._store = self.store  # noqa: SLF001 -- chords go through it

    def lease(self, worker: str = WORKER, *, lease_ms: int = LEASE_MS) -> None:
        report = b'{"pools":["critical","shared"],"suspects":2}'
        self.store.call(calls.renew(self.prefix, worker, lease_ms, first=True, report=report))

    def take(self, pool: str = "shared", most: int = 1, *, worker: str = WORKER) -> list[Any]:
        """Fetch work, the fullest lanes first, under a lease of *worker*."""
        quotas = [part for lane in ("high", "normal", "low") for part in (lane, most)]
        call = calls.fetch(self.prefix, worker, pool, most, 0, quotas)
        entries: list[Any] = self.store.call(call)[1]
        return entries

    def work(self, pool: str = "shared", most: int = 1) -> None:
        """Fetch work and do it, as our worker does."""
        self.lease()
        asyncio.run(self._work(pool, self.take(pool, most)))

    async def _work(self, pool: str, entries: list[Any]) -> None:
        cell, app = _Cell(self.store), self.app.aq
        parts: Any = SimpleNamespace(
            app=app, hostname=HOST, cell=cell, clock=_Clock(), threads=None, processes=None,
            joins=JoinReader(app=app, cell=cell), events=TaskEvents(enabled=False),  # type: ignore[arg-type]
            jitter=lambda: 0.5,
        )  # fmt: skip
        suspects: Any = SimpleNamespace(at_once=0, most=0)
        hands = Hands(parts=parts, slots=10, suspects=suspects, complete=self._complete)
        for entry in entries:
            hands.take(pool, entry)
            if running := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(running)  # one after the other: their order is recorded

    def _complete(self, ending: Any, _: str) -> None:
        for call in ending:
            self.store.call(call)

    def rest(self) -> dict[str, Any]:
        """Return what lies in the cell."""
        return dumped(self.store)

    # -- what is called without a worker ----------------------------------------------------------

    def add(self, id_: str) -> None:
        """Send a Celery task."""
        self.app.add.apply_async((0, 0), task_id=id_)

    def enqueue(
        self,
        *work: Message | Effect,
        run: calls.NewRun = calls.NO_RUN,
        id_: str = "",
        length: int = 100,
        size: int = 1 << 20,
        tenants: int = 0,
    ) -> None:
        tenant = "acme" if tenants else ""
        admission = calls.Admission(id_, 60_000, "shared", "normal", length, size, tenant, tenants)
        given = [effects.put(one) if isinstance(one, Message) else one for one in work]
        self.store.call(calls.enqueue(self.prefix, admission, given, run=run))

    def open(self, *, length: int) -> None:
        admission = calls.Admission("group", 60_000, "shared", "normal", length, 1 << 20)
        put = effects.put(message("g"))
        self.store.call(calls.open_staged(self.prefix, admission, [put], count=1))

    def end(self, entry: list[Any], *ending: Effect, run: str = "") -> None:
        self.store.call(calls.complete(self.prefix, entry[1], entry[2], run, KEEP_MS, ending))

    def hand_back(self, entry: list[Any], *, retry: bool, after_ms: int = 0) -> None:
        call = calls.fail(
            self.prefix, f"shared:{entry[0].decode()}", entry[1], entry[2],
            after_ms=after_ms, retry=retry,
        )  # fmt: skip
        self.store.call(call)

    def died(self, entry: list[Any], *, limit: int) -> None:
        lane = f"shared:{entry[0].decode()}"
        self.store.call(
            calls.died(self.prefix, lane, entry[1], entry[2], limit=limit, keep_ms=KEEP_MS)
        )

    def reap(self) -> None:
        self.store.call(calls.reap(self.prefix, 3, 3_600_000, KEEP_MS))

    def promote(self) -> None:
        self.store.call(calls.promote(self.prefix, 100, KEEP_MS))


def message(id_: str, *, run: str = "", join: str = "", head: bytes = b"") -> Message:
    """Return one as short as can be."""
    head = head or envelope.pack({"task": "wire.add", "id": id_}, {})
    return Message("shared", "normal", 0, id_, run, join, head, b"[[0,1],{},null]")


@contextmanager
def chunks_of(most: int) -> Iterator[None]:
    """Stage from *most* messages on."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (compiler, publisher):
            patch.setattr(module, "CHUNK", most)
        yield
