"""Seeded faults of the store clients: an error before a call is sent, its reply lost, a timeout.

As Temporal injects them into its persistence layer. They stand beneath the clients' own retries and
translation, so that what those make of a fault is tested too, and come by seed, process and call:
the n-th call of a function fails in the same way whenever the same process makes it again.

    before    nothing was sent
    after     served whole; the link is cut before the reply
    timeout   served, in part or not at all; an answer is waited for in vain

A test injects them into its own process with `injected`, and into workers by the variable
`AQ_TEST_STORE_FAULTS`, which an app that calls `from_environment` obeys.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import redis.exceptions

from agentq.store import client
from agentq.store.calls import Call
from tests.support.ledger import note

VARIABLE = "AQ_TEST_STORE_FAULTS"
NOTED = "fault"
"""How a fault's line in the ledger begins: then come its kind and the call."""

_KINDS = ("before", "after", "timeout")
_TIMEOUT_S = 0.05
"""What a timeout takes here: the clients' own is seconds."""
_for_good = ExitStack()


@dataclass
class StoreFaults:
    """Decides which calls of one process fail, and how."""

    seed: str
    rate: float
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def of(self, name: str, calls: int) -> tuple[str, int] | None:
        """Return the fault of the next call or pipeline *name*, and how many *calls* are served."""
        with self._lock:
            self._counts[name] += 1
            chance = random.Random(f"{self.seed} {name} {self._counts[name]}")  # noqa: S311
        if chance.random() >= self.rate:
            return None
        kind = chance.choice(_KINDS)
        note(NOTED, kind, name)
        return kind, {"before": 0, "after": calls}.get(kind, chance.randint(0, calls))

    def variable(self) -> str:
        return f"{self.seed} {self.rate}"


def _name(call: Sequence[Any]) -> str:
    return str(call[1] if call[0] == "FCALL" else call[0])


def _error(kind: str) -> redis.exceptions.RedisError:
    if kind == "timeout":
        return redis.exceptions.TimeoutError("injected")
    return redis.exceptions.ConnectionError("injected")


def _command(send: Callable[..., Any], faults: StoreFaults) -> Callable[..., Any]:
    """Return *send*, a client's `execute_command`, with faults."""

    def faulty(*call: Any, **options: Any) -> Any:
        if (fault := faults.of(_name(call), 1)) is None:
            return send(*call, **options)
        kind, served = fault
        if served:
            send(*call, **options)
        if kind == "timeout":
            time.sleep(_TIMEOUT_S)
        raise _error(kind)

    return faulty


def _acommand(
    send: Callable[..., Awaitable[Any]], faults: StoreFaults
) -> Callable[..., Awaitable[Any]]:
    async def faulty(*call: Any, **options: Any) -> Any:
        if (fault := faults.of(_name(call), 1)) is None:
            return await send(*call, **options)
        kind, served = fault
        if served:
            await send(*call, **options)
        if kind == "timeout":
            await asyncio.sleep(_TIMEOUT_S)
        raise _error(kind)

    return faulty


def _pipeline(faults: StoreFaults) -> Callable[..., list[Any]]:
    """Return `Store._pipelined` with faults; a timeout may come when some calls are served."""
    send = client.Store._pipelined  # noqa: SLF001 -- the seam

    def faulty(store: client.Store, calls: Sequence[Call]) -> list[Any]:
        if (fault := faults.of(f"pipeline:{_name(calls[0])}", len(calls))) is None:
            return send(store, calls)
        kind, served = fault
        if served:
            send(store, calls[:served])
        if kind == "timeout":
            time.sleep(_TIMEOUT_S)
        raise _error(kind)

    return faulty


def _apipeline(faults: StoreFaults) -> Callable[..., Awaitable[list[Any]]]:
    send = client.AsyncStore._pipelined  # noqa: SLF001 -- the seam

    async def faulty(store: client.AsyncStore, calls: Sequence[Call]) -> list[Any]:
        if (fault := faults.of(f"pipeline:{_name(calls[0])}", len(calls))) is None:
            return await send(store, calls)
        kind, served = fault
        if served:
            await send(store, calls[:served])
        if kind == "timeout":
            await asyncio.sleep(_TIMEOUT_S)
        raise _error(kind)

    return faulty


def _connecting(connect: Callable[..., Any], wrap: Callable[..., Any], faults: StoreFaults) -> Any:
    def faulty(*args: Any, **options: Any) -> Any:
        found = connect(*args, **options)
        found.execute_command = wrap(found.execute_command, faults)
        return found

    return faulty


@contextmanager
def injected(faults: StoreFaults) -> Iterator[None]:
    """Inject *faults* into the stores that connect in here, of this process."""
    replaced: list[tuple[Any, str, Any]] = [
        (client, "connect", _connecting(client.connect, _command, faults)),
        (client, "connect_async", _connecting(client.connect_async, _acommand, faults)),
        (client.Store, "_pipelined", _pipeline(faults)),
        (client.AsyncStore, "_pipelined", _apipeline(faults)),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, faulty in replaced:
        setattr(owner, name, faulty)
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def from_environment() -> None:
    """Inject what the variable says, for as long as this process lives."""
    if text := os.environ.get(VARIABLE):
        seed, rate = text.rsplit(" ", 1)
        _for_good.enter_context(injected(StoreFaults(seed, float(rate))))
