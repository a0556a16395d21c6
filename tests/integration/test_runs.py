"""A run in its submitter's hand: waiting, watching, cancelling, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentq import AgentQ
from agentq.errors import (
    BrokerNotConfigured,
    BrokerUnavailable,
    DeadlineExceeded,
    InvalidArgument,
    PayloadTooLarge,
    QueueFull,
    RunCancelled,
    RunNotFound,
    SettingsError,
    UnknownFlow,
    WaitTimeout,
)
from agentq.runs.record import RunEvent, RunStatus
from tests.support.ledger import Ledger
from tests.support.running import Running, running
from tests.support.waiting import wait_until


def flow(flows: Running, name: str) -> Any:
    return flows.app.aq.get_flow(name)


# -- submitting -------------------------------------------------------------------------------------


def test_the_same_key_is_the_same_run(flows: Running) -> None:
    brief = flows.app.Brief(n=3)
    first = flow(flows, "research").submit(brief, key="ticket-1")
    again = flow(flows, "research").submit(brief, key="ticket-1")
    other = flow(flows, "research").submit(brief, key="ticket-1", tenant="acme")
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert again.id == first.id != other.id
    assert first.result(timeout=5) == again.result(timeout=5)
    assert flow(flows, "research").submit(brief, key="ticket-1").duplicate
    with pytest.raises(InvalidArgument, match="would be one run for all"):
        flow(flows, "research").submit(brief, key="")
    assert len(flows.ledger.lines(f"plan {first.id}")) == 1


def test_many_runs_are_submitted_at_once_and_each_ends(flows: Running) -> None:
    keys = [f"many-{i}" for i in range(1200)]
    handles = flow(flows, "sequence").submit_many([2] * 1200, keys=keys)
    assert len({handle.id for handle in handles}) == 1200
    assert all(handle.result(timeout=20) == [10, 20] for handle in handles)
    assert all(one.duplicate for one in flow(flows, "sequence").submit_many([2], keys=keys[:1]))


def test_a_full_queue_says_what_was_accepted_and_when_to_come_back(flows: Running) -> None:
    small = AgentQ("small", overrides={"broker.max_length": 2, "broker.cell": "full"})
    small.__dict__["address"] = flows.app.aq.address.__class__(
        **{**_fields(flows.app.aq.address), "cell": "full"}
    )

    async def anything(_: int) -> None: ...

    full = small.flow("full", small.step(anything))
    with pytest.raises(
        QueueFull, match=r"holds 2 of at most 2 messages.*broker\.max_length"
    ) as caught:
        full.submit_many(range(5))
    assert len(caught.value.accepted) == 2
    assert caught.value.retry_after.total_seconds() > 0
    with pytest.raises(QueueFull):
        full.submit(1)


def _fields(address: Any) -> dict[str, Any]:
    return {name: getattr(address, name) for name in address.__slots__}


def test_an_argument_beyond_the_limit_is_refused_with_the_limit_in_the_text() -> None:
    refusing = AgentQ("refusing", overrides={"blobs.store": "none"})

    async def anything(_: str) -> None: ...

    text = r"300002 bytes as JSON; broker.max_payload is 262144: set blobs.directory"
    with pytest.raises(PayloadTooLarge, match=text):
        refusing.flow("refused", refusing.step(anything)).submit("x" * 300_000)


def test_a_deadline_of_zero_is_over_at_once(flows: Running) -> None:
    handle = flow(flows, "sleeping").submit(5.0, deadline="0s")
    with pytest.raises(DeadlineExceeded):
        handle.result(timeout=5)
    assert flows.ledger.lines(f"sleeper ended {handle.id}") == []


def test_a_run_behind_its_deadline_is_expired_though_no_worker_comes_by(
    url: str, ledger: Ledger
) -> None:
    with running("tests.support.apps.flows", url, ledger) as nobody:
        handle = flow(nobody, "sleeping").submit(5.0, deadline="200ms")
        with pytest.raises(DeadlineExceeded):
            handle.result(timeout=20)
        status = handle.status()
        assert (status.state, status.ended) == ("expired", status.deadline)

        async def asked() -> RunStatus:
            found: RunStatus = await handle.astatus()
            await nobody.app.aq.aclose()
            return found

        assert asyncio.run(asked()) == status


# -- waiting and watching ---------------------------------------------------------------------------


def test_a_caller_may_stop_waiting_and_ask_again(flows: Running) -> None:
    handle = flow(flows, "sleeping").submit(0.5)
    with pytest.raises(WaitTimeout, match="it goes on"):
        handle.result(timeout="50ms")
    assert handle.status().state == "running"
    assert flows.app.aq.run(handle.id).result(timeout=5) == 0.5
    assert handle.status().state == "done"


def test_a_run_may_take_longer_than_a_call_to_the_broker(flows: Running) -> None:
    hasty = AgentQ("hasty", overrides={"broker.timeout": "500ms"})
    handle = flow(flows, "sleeping").submit(1.5)
    assert hasty.run(handle.id).result(timeout=9) == 1.5
    assert awaited(hasty, hasty.run(handle.id).aresult(timeout=9)) == 1.5


def test_status_says_what_was_submitted_and_how_long_it_took(flows: Running) -> None:
    handle = flow(flows, "sleeping").submit(0.2, key="k", tenant="acme", deadline="1m")
    handle.result(timeout=5)
    status = handle.status()
    assert (status.flow, status.key, status.tenant) == ("sleeping", "k", "acme")
    assert status.deadline is not None
    assert (status.deadline - status.submitted).total_seconds() == 60
    assert status.took is not None
    assert 0.2 <= status.took.total_seconds() < 1


def test_events_come_in_order_and_the_end_is_the_last(flows: Running) -> None:
    handle = flow(flows, "narrow").submit(flows.app.Brief(n=2, bad=[1]))
    events = list(handle.events())
    assert [event.id for event in events] == sorted(event.id for event in events)
    kinds = [event.kind for event in events]
    assert kinds == ["step", "fanout", "step", "step", "step", "end"]
    assert events[1].data["width"] == 2
    names = [event.data["step"].rpartition(".")[2] for event in events if event.kind == "step"]
    assert names == ["plan", "execute", "execute", "review"]
    states = sorted(event.data["state"] for event in events if event.kind == "step")
    assert states == ["done", "done", "done", "failed"]
    assert all(event.data["worker"] == "w@test" for event in events if event.kind == "step")


def test_a_reader_goes_on_behind_the_last_event_it_saw(flows: Running) -> None:
    handle = flow(flows, "narrow").submit(flows.app.Brief(n=3))
    every = list(handle.events())
    assert list(handle.events(after=every[2].id)) == every[3:]
    assert list(handle.events(after=every[-1].id)) == []


def test_progress_is_seen_while_the_step_runs(flows: Running) -> None:
    handle = flow(flows, "talk").submit(3)
    said = [event.data for event in handle.events() if event.kind == "progress"]
    assert [one["message"] for one in said] == ["part 0", "part 1", "part 2"]
    assert [(one["done"], one["total"]) for one in said] == [(0, 3), (1, 3), (2, 3)]


def test_async_callers_submit_wait_watch_and_cancel(flows: Running) -> None:
    async def one() -> tuple[Any, list[RunEvent], str]:
        handle = await flow(flows, "sequence").asubmit(3)
        result = await handle.aresult(timeout=5)
        events = [event async for event in handle.aevents()]
        return result, events, (await handle.astatus()).state

    async def many() -> list[tuple[Any, list[RunEvent], str]]:
        return await asyncio.gather(*(one() for _ in range(50)))

    for result, events, state in awaited(flows.app.aq, many()):
        assert (result, state) == ([10, 20, "ValueError"], "done")
        assert events[-1].kind == "end"

    async def cancelled() -> bool:
        handle = await flow(flows, "sleeping").asubmit(60)
        done = await handle.acancel()
        with pytest.raises(RunCancelled):
            await handle.aresult(timeout=5)
        return done

    assert awaited(flows.app.aq, cancelled())


def test_an_unknown_run_is_not_found(flows: Running) -> None:
    handle = flows.app.aq.run("0" * 32)
    calls: list[Callable[[], Any]] = [
        handle.status,
        lambda: handle.result(timeout=1),
        handle.cancel,
    ]
    for call in calls:
        with pytest.raises(RunNotFound, match="0" * 32):
            call()
    waits: list[Callable[[], Awaitable[Any]]] = [handle.astatus, handle.aresult, handle.acancel]
    for waiting in waits:
        with pytest.raises(RunNotFound):
            awaited(flows.app.aq, waiting())


def awaited(aq: Any, waiting: Awaitable[Any]) -> Any:
    """Run an event loop for *waiting*, as a program would that closes what it opened."""

    async def main() -> Any:
        try:
            return await waiting
        finally:
            await aq.aclose()

    return asyncio.run(main())


# -- cancelling -------------------------------------------------------------------------------------


def test_a_cancelled_run_stops_what_runs_and_starts_nothing_more(flows: Running) -> None:
    handle = flow(flows, "naps").submit(300)
    wait_until(lambda: flows.ledger.lines(f"sleeper began {handle.id}"), "members run")
    assert handle.cancel()
    assert not handle.cancel()
    with pytest.raises(RunCancelled, match=handle.id):
        handle.result(timeout=5)
    wait_until(lambda: not running_in(flows), "the worker has let go")
    began = flows.ledger.lines(f"sleeper began {handle.id}")
    assert 0 < len(began) <= 257  # runs.at_once, and one after the member that sleeps 0 s
    probe = flow(flows, "pid").submit()
    probe.result(timeout=5)
    assert flows.ledger.lines(f"sleeper began {handle.id}") == began
    ended = set(flows.ledger.lines(f"sleeper ended {handle.id}"))
    assert len(ended) <= 1  # member 0 sleeps 0 s


def test_a_cancelled_run_that_waits_in_its_queue_never_starts(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.flows", url, ledger) as app:
        cancelled, other = (flow(app, "sleeping").submit(0.0) for _ in range(2))
        assert cancelled.cancel()
        app.worker()
        assert other.result(timeout=5) == 0
        with pytest.raises(RunCancelled):
            cancelled.result(timeout=5)
        assert ledger.lines("sleeper began") == [f"sleeper began {other.id}"]


def test_a_cancel_that_overtakes_its_step_is_not_lost(flows: Running) -> None:
    """The worker may hear of it while the fetch that brings the step is under way."""

    async def many() -> None:
        for _ in range(200):
            handle = await flow(flows, "sleeping").asubmit(60.0)
            await handle.acancel()

    awaited(flows.app.aq, many())
    wait_until(lambda: not running_in(flows), "the worker runs none of them", timeout=8)


def test_a_cancelled_cpu_step_is_ended_with_its_process(flows: Running) -> None:
    began = len(flows.ledger.lines("cpu began"))
    ended = len(flows.ledger.lines("cpu ended"))
    handle = flow(flows, "cpu").submit(60.0)
    [line] = wait_until(lambda: flows.ledger.lines("cpu began")[began:], "it runs")
    pid = int(line.split()[-1])
    handle.cancel()
    wait_until(lambda: not _runs(pid), f"process {pid} has ended")
    assert len(flows.ledger.lines("cpu ended")) == ended
    assert isinstance(flow(flows, "cpu").submit(0.0).result(timeout=5), int)


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def running_in(flows: Running) -> int:
    """Return how many steps the worker says it runs."""
    reply = flows.app.app.control.inspect(timeout=0.5).active()
    return sum(len(steps) for steps in reply.values()) if reply else 1  # busy: it does not answer


# -- what a newcomer does wrong ---------------------------------------------------------------------


def test_an_unknown_flow_names_those_there_are(flows: Running) -> None:
    with pytest.raises(UnknownFlow, match=r"app 'flows' has no flow 'reserch'; it has: .*research"):
        flows.app.aq.get_flow("reserch")


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    for name in [name for name in os.environ if name.startswith("AGENTQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path  # type: ignore[return-value]


def declared(url: str | None, **overrides: object) -> Any:
    aq = AgentQ("new", overrides={"broker.url": url, **overrides} if url else overrides)

    async def anything(_: object) -> None: ...

    return aq.flow("any", aq.step(anything))


@pytest.mark.usefixtures("no_environment")
def test_without_a_broker_the_error_names_both_ways_to_get_one() -> None:
    with pytest.raises(BrokerNotConfigured, match=r"`agentq up`.*AGENTQ_BROKER__URL"):
        declared(None).submit(1)


@pytest.mark.usefixtures("no_environment")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://127.0.0.1", "scheme 'redis' is not one of agentq, agentq\\+tls"),
        ("agentq://", "an address starts with a scheme, as in agentq://127.0.0.1:6379/0"),
        ("agentq://127.0.0.1:port/0", "port"),
        ("agentq+unix://?db=1", "path is missing"),
        ("agentq://127.0.0.1?colour=red", "option 'colour' is unknown"),
    ],
)
def test_a_wrong_broker_url_is_refused_with_its_reason(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        declared(url).submit(1)


@pytest.mark.usefixtures("no_environment")
def test_a_broker_that_does_not_answer_is_given_up_within_its_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        url = f"agentq://127.0.0.1:{silent.getsockname()[1]}"
        flow = declared(url, **{"broker.timeout": "300ms"})
        aq = flow._app  # noqa: SLF001 -- the app it belongs to
        for submit in (
            lambda: flow.submit(1),
            lambda: flow.submit_many([1]),
            lambda: awaited(aq, flow.asubmit(1)),
        ):
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1.* within 300ms"):
                submit()
            assert time.monotonic() - began < 1.5


@pytest.mark.usefixtures("no_environment")
def test_a_broker_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=f"agentq://127.0.0.1:{port}/0"):
        declared(f"agentq://127.0.0.1:{port}").submit(1)
    assert time.monotonic() - began < 1
