"""A broker that is stopped, silent or gone: every call of a producer answers within its limit."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from agentq import AgentQ
from agentq.errors import BrokerUnavailable
from agentq.flows.flow import Flow
from tests.support.redis_server import Server

TIMEOUT_S = 0.7
GRACE_S = 1.0
FAULTS = ("stopped", "silent", "refused")


class Producer:
    """An app that only submits."""

    def __init__(self, url: str, timeout: str = "700ms") -> None:
        overrides = {"broker.url": url, "broker.timeout": timeout}
        self.aq = AgentQ("producer", overrides=overrides)

        async def anything(_: object) -> None: ...

        self.flow: Flow = self.aq.flow("one", self.aq.step(name="anything")(anything))

        def plain() -> None: ...

        self.task: Any = self.aq.celery.task(name="plain")(plain)
        self.run = self.aq.run("some-run")

    def close(self) -> None:
        self.aq.celery.backend.result_consumer.stop()
        self.aq.celery.close()
        self.aq.store.close()


@contextmanager
def stopped(server: Server) -> Iterator[int]:
    """Stop the server's process; a signal to it, and nothing else, lets it go on."""
    process = server.embedded._process  # noqa: SLF001 -- tests may
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield process.pid
    finally:
        os.kill(process.pid, signal.SIGCONT)


@contextmanager
def silent(*, hangs_up_after_s: float = 3600.0) -> Iterator[str]:
    """Listen, accept, and never answer; hang up in the end."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.02)

        def accept() -> None:
            taken: dict[socket.socket, float] = {}
            while not ended.is_set():
                with suppress(TimeoutError):
                    taken[listener.accept()[0]] = time.monotonic() + hangs_up_after_s
                for one in [one for one, until in taken.items() if time.monotonic() >= until]:
                    taken.pop(one)
                    one.close()
            for one in taken:
                one.close()

        thread = threading.Thread(target=accept, name="silent listener")
        thread.start()
        try:
            yield f"agentq://127.0.0.1:{listener.getsockname()[1]}/0"
        finally:
            ended.set()
            thread.join()


@contextmanager
def producer_of(url: str, timeout: str = "700ms") -> Iterator[Producer]:
    producer = Producer(url, timeout)
    try:
        yield producer
    finally:
        producer.close()


@pytest.fixture(params=FAULTS)
def cut_off(request: pytest.FixtureRequest, breakable_server: Server) -> Iterator[Producer]:
    """A producer whose broker does not answer, each way it can."""
    if request.param == "silent":
        with silent() as url, producer_of(url) as producer:
            yield producer
    elif request.param == "refused":
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        with producer_of(f"agentq://127.0.0.1:{port}/0") as producer:
            yield producer
    else:
        with producer_of(breakable_server.url) as producer:
            producer.run = producer.flow.submit(1)
            with stopped(breakable_server):
                yield producer


CALLS: dict[str, Callable[[Producer], Any]] = {
    "submit": lambda p: p.flow.submit(1, key="k"),
    "submit and wait for room": lambda p: p.flow.submit(1, wait="1h"),
    "submit_many": lambda p: p.flow.submit_many(range(1000)),
    "delay": lambda p: p.task.delay(),
    "result": lambda p: p.run.result(timeout=60),
    "status": lambda p: p.run.status(),
    "cancel": lambda p: p.run.cancel(),
    "history": lambda p: p.run.history(),
}


def test_every_call_gives_up_within_its_limit_and_leaves_no_thread(cut_off: Producer) -> None:
    for name, call in CALLS.items():
        before = set(threading.enumerate())
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            call(cut_off)
        assert time.monotonic() - began < TIMEOUT_S + GRACE_S, name
        assert set(threading.enumerate()) <= before, name


def test_a_link_that_is_cut_late_is_not_waited_for_twice() -> None:
    with silent(hangs_up_after_s=1.8) as url, producer_of(url, "2s") as producer:
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            producer.flow.submit(1)
        assert 1.7 < time.monotonic() - began < 2 + GRACE_S


AWAITED: dict[str, Callable[[Producer], Any]] = {
    "asubmit": lambda p: p.flow.asubmit(1),
    "aresult": lambda p: p.run.aresult(timeout=60),
    "astatus": lambda p: p.run.astatus(),
    "acancel": lambda p: p.run.acancel(),
}


def test_every_awaited_call_gives_up_within_its_limit(cut_off: Producer) -> None:
    async def all_of_them() -> None:
        for name, call in AWAITED.items():
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                await call(cut_off)
            assert time.monotonic() - began < TIMEOUT_S + GRACE_S, name
        await cut_off.aq.aclose()

    asyncio.run(all_of_them())


@pytest.mark.parametrize("name", AWAITED)
def test_an_awaiting_caller_is_cancelled_at_once(breakable_server: Server, name: str) -> None:
    async def cancelled(producer: Producer) -> float:
        producer.run = await producer.flow.asubmit(1)
        with stopped(breakable_server):
            waiting = asyncio.ensure_future(AWAITED[name](producer))
            await asyncio.wait([waiting], timeout=0.1)
            assert not waiting.done()
            began = time.monotonic()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            took = time.monotonic() - began
        other = await producer.flow.asubmit(2)  # and it gets its own reply
        assert (await other.astatus()).state == "running"
        await producer.aq.aclose()
        return took

    with producer_of(breakable_server.url) as producer:
        assert asyncio.run(cancelled(producer)) < 0.1
