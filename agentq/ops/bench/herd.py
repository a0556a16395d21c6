"""No herd: what a message costs the server when hundreds of workers have nothing to do.

Messages are enqueued one by one, each when the one before was taken. A message must wake one
worker and no more, and the idle ones must not make it dearer: a client that is blocked on a stream
is tried again at each XADD (measured: 1.6 ms a message at 1,000 on Valkey), hence wake keys.

The server's CPU is its main thread's. What the same idle workers cost it at rest (their polls) is
taken off and is a figure of its own, as is what their sweeps cost, which `fleet` leaves out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Semaphore

from agentq.errors import BenchFailed
from agentq.ops.bench.figures import Figure
from agentq.ops.bench.fleet import KEEP_MS, POOL, Fleet
from agentq.ops.bench.server import private_server
from agentq.store import calls, effects
from agentq.store.address import parse
from agentq.store.client import Store
from agentq.store.effects import Message
from agentq.worker.sweeper import pace

READERS = (2, 200, 1000)
MESSAGES = 1000
MOST_REPLIES = 1.1
MOST_DEARER = 2.0

REST_S = 6.0
"""As long as a poll: each worker has one in it."""
_TAKEN_S = 10.0
_SWEEPS = 2000
_CAP = 1 << 40


@dataclass(frozen=True, slots=True)
class Cost:
    """What a message costs with so many idle workers.

    Attributes:
        readers: idle workers.
        woken: replies to waiting workers, a message.
        fetched: fetches a message, polls included.
        cpu_us: of the server, a message.
        rest: of the server at rest, share of a core.
    """

    readers: int
    woken: float
    fetched: float
    cpu_us: float
    rest: float


def measure_herd(
    *,
    readers: Sequence[int] = READERS,
    messages: int = MESSAGES,
    rest_s: float = REST_S,
    server: Path | None = None,
) -> list[Figure]:
    """Measure each number of idle workers on a private server; takes about half a minute.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
        BenchFailed: a message was not taken, or the workers did not start.
    """
    with private_server(server) as embedded:
        costs = [_measured(embedded.url, count, messages, rest_s) for count in readers]
        sweep_us = _sweep_us(embedded.url)
    return _figures(costs, sweep_us)


def _figures(costs: Sequence[Cost], sweep_us: float) -> list[Figure]:
    few, many = costs[0], costs[-1]
    result = []
    for cost in costs:
        name = f"{cost.readers:,} idle workers"
        result += [
            Figure(f"{name}: woken", cost.woken, "a message", MOST_REPLIES),
            Figure(f"{name}: fetches, polls included", cost.fetched, "a message"),
            Figure(f"{name}: server CPU", cost.cpu_us, "us a message"),
            Figure(f"{name}: server CPU at rest", cost.rest * 100, "% of a core"),
        ]
    sweeps = sweep_us * many.readers / pace(many.readers) / 1e6
    return [
        *result,
        Figure(
            f"server CPU a message, {many.readers:,} idle beside {few.readers:,}",
            many.cpu_us / few.cpu_us, "times", MOST_DEARER,
        ),
        Figure(f"{many.readers:,} workers' sweeps: server CPU", sweeps * 100, "% of a core"),
    ]  # fmt: skip


def _measured(url: str, count: int, messages: int, rest_s: float) -> Cost:
    store = Store(address=parse(url), timeout=timedelta(seconds=30))
    taken = Semaphore(0)
    try:
        store.command("FLUSHALL")
        with Fleet(address=parse(url), count=count, on_taken=taken.release) as fleet:
            rest = _at_rest(store, rest_s)
            woken, fetched, spent, began = fleet.woken, fleet.fetches, _cpu_s(store), _now()
            for number in range(messages):
                store.call(_enqueue(store, number))
                if not taken.acquire(timeout=_TAKEN_S):
                    raise BenchFailed(f"message {number} was not taken by {count} idle workers")
            spent = _cpu_s(store) - spent - rest * (_now() - began)
            return Cost(
                count,
                (fleet.woken - woken) / messages,
                (fleet.fetches - fetched) / messages,
                spent / messages * 1e6,
                rest,
            )
    finally:
        store.close()


def _at_rest(store: Store, seconds: float) -> float:
    spent, began = _cpu_s(store), _now()
    time.sleep(seconds)  # what is measured is that nothing happens
    return (_cpu_s(store) - spent) / (_now() - began)


def _enqueue(store: Store, number: int) -> calls.Call:
    message = Message(POOL, "normal", 0, f"m{number}", "", "", b"h" * 400, b"b" * 100)
    admission = calls.Admission("", 0, POOL, "normal", _CAP, _CAP)
    return calls.enqueue(store.keys.prefix, admission, [effects.put(message)])


def _sweep_us(url: str) -> float:
    """Return the server's CPU for one round of a worker's sweep, where nothing is due."""
    store = Store(address=parse(url), timeout=timedelta(seconds=30))
    prefix = store.keys.prefix
    sweep = [calls.reap(prefix, 3, _CAP, KEEP_MS), calls.promote(prefix, 200, KEEP_MS)]
    try:
        spent = _cpu_s(store)
        for _ in range(_SWEEPS):
            store.pipeline(sweep)
        return (_cpu_s(store) - spent) / _SWEEPS * 1e6
    finally:
        store.close()


def _cpu_s(store: Store) -> float:
    """Return the CPU seconds of the server's main thread."""
    found = store.client.info("cpu")
    return float(found["used_cpu_user_main_thread"]) + float(found["used_cpu_sys_main_thread"])


def _now() -> float:
    return time.monotonic()
