"""Delayed work waits in Redis: 100,000 tasks cost no worker memory, and come when they are due.

A real worker is warmed up, then the tasks are delayed: most of them by an hour, some to one second
soon. While those come due it is watched, on the server's clock, how late the first one that still
waits is. How long `promote` holds the server is from the server's own slow log: half of its calls,
and the longest, in which the server may have been interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from agentq.broker import envelope
from agentq.errors import BenchFailed
from agentq.host.process import usage
from agentq.ops.bench.arena import Arena, Worker
from agentq.ops.bench.figures import Figure
from agentq.ops.bench.functions import LIMIT_US
from agentq.ops.bench.rows import Test
from agentq.ops.bench.systems import CANDIDATE, system
from agentq.store import calls, effects
from agentq.store.address import parse
from agentq.store.client import Store
from agentq.store.effects import Message

COUNT, DUE = 100_000, 10_000
SETTLE_S = 2.0
"""How long a process is left alone before its memory is read."""
LATE_S = 1.0
GROWTH_MB = 2.0
"""What a process' memory may move by itself."""

_POOL = "shared"
_TASK = "agentq.ops.bench.agentq_app.noop_task"
_WARM = 2000
_CHUNK = 500
_HOUR_MS = 3_600_000
_LIMIT_S = 60.0
_SOON_S = 1.0
_CAP = 1 << 40


def measure_delayed(
    *,
    count: int = COUNT,
    due: int = DUE,
    settle_s: float = SETTLE_S,
    server: Path | None = None,
) -> list[Figure]:
    """Delay *count* tasks, *due* of them to one second; takes about half a minute.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
        BenchFailed: the worker ended, or what was due did not run.
    """
    with Arena(system=system(CANDIDATE, scale=1), test=Test.DRAIN, program=server) as arena:
        store = Store(address=parse(arena.url), timeout=timedelta(seconds=30))
        try:
            with arena.worker() as worker:
                plan = _Plan(count, due, settle_s)
                return _measured(arena, worker, store, plan)
        finally:
            store.close()


@dataclass(frozen=True, slots=True)
class _Plan:
    count: int
    due: int
    settle_s: float


def _measured(arena: Arena, worker: Worker, store: Store, plan: _Plan) -> list[Figure]:
    due, left = plan.due, plan.count - plan.due
    _delay(store, [0] * _WARM)
    arena.await_steps(_WARM, worker=worker, timeout_s=_LIMIT_S)
    time.sleep(plan.settle_s)
    before = _rss_mb(worker)
    _delay(store, [_HOUR_MS] * left)
    began_ms = _now_ms(store) + int((plan.settle_s * 2 + _SOON_S) * 1000)
    _delay(store, [began_ms + 1000 * place // due for place in range(due)], at=True)
    time.sleep(plan.settle_s)
    after = _rss_mb(worker)
    _watch_functions(store)
    late_s = _latest_s(store, began_ms + 1000, left)
    arena.await_steps(_WARM + due, worker=worker, timeout_s=_LIMIT_S)
    held_us = _held_us(store)
    wakes = store.client.info("commandstats").get("cmdstat_rpush", {"calls": 0})["calls"]
    return [
        Figure("worker's memory before", before, "MB"),
        Figure(
            f"worker's memory beside {plan.count:,} delayed tasks", after, "MB", before + GROWTH_MB
        ),
        Figure(f"{due:,} due in one second: the latest behind its time", late_s, "s", LATE_S),
        Figure("half of the promotes hold the server for", _at(held_us, 0.5), "us", LIMIT_US),
        Figure("the longest, interruptions included", _at(held_us, 1.0), "us"),
        Figure("wake-ups meanwhile", wakes, "in all"),
    ]


def _rss_mb(worker: Worker) -> float:
    return usage(worker.pid).rss_bytes / 1e6


def _now_ms(store: Store) -> int:
    seconds, micros = store.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def _delay(store: Store, times_ms: Sequence[int], *, at: bool = False) -> None:
    """Enqueue a task for each of *times_ms*: how long from now, or *at* which instant."""
    admission = calls.Admission("", 0, _POOL, "normal", _CAP, _CAP)
    for start in range(0, len(times_ms), _CHUNK):
        chunk = times_ms[start : start + _CHUNK]
        work = [effects.put(_message(due if at else -due)) for due in chunk]
        store.call(calls.enqueue(store.keys.prefix, admission, work))


def _message(due_ms: int) -> Message:
    task_id = uuid4().hex
    head = envelope.pack({"task": _TASK, "id": task_id}, {}, envelope.JSON, "utf-8")
    return Message(_POOL, "normal", due_ms, task_id, "", "", head, b"[[{}],{},null]")


def _watch_functions(store: Store) -> None:
    for name, value in (("slowlog-log-slower-than", 100), ("slowlog-max-len", 100_000)):
        store.command("CONFIG", "SET", name, value)
    store.command("SLOWLOG", "RESET")
    store.command("CONFIG", "RESETSTAT")


def _held_us(store: Store) -> list[int]:
    """Return how long each promote that moved something held the server, sorted."""
    found = store.client.slowlog_get(100_000)
    return sorted(one["duration"] for one in found if b"aq1_promote" in one["command"])


def _at(values: Sequence[int], share: float) -> float:
    return float(values[min(len(values) - 1, int(len(values) * share))]) if values else 0.0


def _latest_s(store: Store, last_due_ms: int, left: int) -> float:
    """Watch until only *left* are delayed; return how late the first one was at most.

    Raises:
        BenchFailed: they did not become due.
    """
    key, latest = store.keys.delayed(), 0.0
    end = time.monotonic() + _LIMIT_S
    while True:
        first, waiting = store.pipeline([("ZRANGE", key, 0, 0, "WITHSCORES"), ("ZCARD", key)])
        now = _now_ms(store)
        if now > last_due_ms and waiting <= left:
            return latest
        if first:
            latest = max(latest, (now - float(first[0][1])) / 1000)
        if time.monotonic() > end:
            raise BenchFailed(f"{waiting - left:,} delayed tasks were not promoted")
        time.sleep(0.01)
