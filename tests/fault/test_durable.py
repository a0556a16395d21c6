"""`durable="replica"`: a submit returns once a replica has the run, or says that none has."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from celery import group

from agentq import AgentQ
from agentq.errors import InvalidArgument, NotReplicated
from agentq.ops.acl import Role, rules
from agentq.ops.status import read_status
from tests.support.failover import FailoverCell, failover_cell
from tests.support.waiting import wait_until

TIMEOUT_S = 0.5
HASTY = {"broker.timeout": "500ms"}
"""Of who is to be refused; who is not has time on a busy machine."""


class Producer:
    """An app that only submits; `cell` closes it."""

    made: ClassVar[list[Producer]] = []

    def __init__(self, url: str, settings: Mapping[str, object] = MappingProxyType({})) -> None:
        self.aq = AgentQ("producer", overrides={"broker.url": url, **settings})

        async def anything(_: object) -> None: ...

        self.flow = self.aq.flow("one", self.aq.step(name="anything")(anything))

        def plain() -> None: ...

        self.task: Any = self.aq.celery.task(name="plain")(plain)
        self.made.append(self)

    def close(self) -> None:
        self.aq.celery.close()
        self.aq.store.close()

    async def asubmit(self, **options: Any) -> Any:
        try:
            return await self.flow.asubmit(1, **options)
        finally:
            await self.aq.aclose()


@pytest.fixture(scope="module")
def shared() -> Iterator[FailoverCell]:
    """A primary and a replica for the tests of this module; a Sentinel names the primary."""
    with failover_cell(sentinels=1) as cell:
        yield cell


@pytest.fixture
def cell(shared: FailoverCell) -> Iterator[FailoverCell]:
    """The same, empty, with the replica up to date again afterwards."""
    shared.primary.client.flushall()
    yield shared
    while Producer.made:
        Producer.made.pop().close()
    shared.replica.send(signal.SIGCONT)
    shared.wait_replicated()


SUBMITS: dict[str, Callable[[Producer], Any]] = {
    "submit": lambda p: p.flow.submit(1, key="k", durable="replica"),
    "asubmit": lambda p: asyncio.run(p.asubmit(key="k", durable="replica")),
    "submit_many": lambda p: p.flow.submit_many([1], keys=["k"], durable="replica"),
}


@pytest.mark.parametrize("name", SUBMITS)
def test_what_was_submitted_stands_on_the_replica(cell: FailoverCell, name: str) -> None:
    producer = Producer(cell.url)
    SUBMITS[name](producer)
    runs = producer.aq.store.keys.runs()
    assert cell.replica.client.zcard(runs) == 1  # not waited for: it is there already


@pytest.mark.parametrize("name", SUBMITS)
def test_without_a_replicas_answer_the_accepted_run_is_named_and_its_key_may_be_repeated(
    cell: FailoverCell, name: str
) -> None:
    producer = Producer(cell.url, HASTY)
    cell.replica.send(signal.SIGSTOP)
    for _ in range(2):  # a repeated one writes nothing, and is waited for all the same
        began = time.monotonic()
        with pytest.raises(NotReplicated, match="accepted by the primary but not") as caught:
            SUBMITS[name](producer)
        assert time.monotonic() - began < TIMEOUT_S + 1
        (handle,) = caught.value.accepted
        assert handle.status().state == "running"
    assert cell.primary.client.zcard(producer.aq.store.keys.runs()) == 1
    cell.replica.send(signal.SIGCONT)
    again = Producer(cell.url).flow.submit(1, key="k", durable="replica")
    assert again.id == handle.id
    assert again.duplicate


def test_without_a_replica_nothing_is_sent_and_nobody_waits(cell: FailoverCell) -> None:
    producer = Producer(cell.url)
    cell.cut_replica_off()
    wait_until(lambda: cell.primary.client.role()[2] == [], "the link has ended")
    for name, submit in SUBMITS.items():
        began = time.monotonic()
        with pytest.raises(NotReplicated, match="no replica is attached") as caught:
            submit(producer)
        assert caught.value.accepted == [], name
        assert time.monotonic() - began < TIMEOUT_S, name
    assert cell.primary.client.zcard(producer.aq.store.keys.runs()) == 0


def test_many_wait_once_for_each_round_trip(cell: FailoverCell) -> None:
    producer = Producer(cell.url)
    producer.flow.submit(0, durable="replica")
    before = cell.primary.client.info("commandstats")["cmdstat_wait"]["calls"]
    producer.flow.submit_many(range(2000), durable="replica")
    waits = cell.primary.client.info("commandstats")["cmdstat_wait"]["calls"] - before
    assert waits == 4


def test_many_that_no_replica_confirms_are_all_named(cell: FailoverCell) -> None:
    producer = Producer(cell.url, HASTY)
    cell.replica.send(signal.SIGSTOP)
    with pytest.raises(NotReplicated, match="500 runs are accepted") as caught:
        producer.flow.submit_many(range(1200), durable="replica")
    assert len(caught.value.accepted) == 500
    assert cell.primary.client.zcard(producer.aq.store.keys.runs()) == 500


def test_the_setting_holds_for_runs_tasks_and_groups(cell: FailoverCell) -> None:
    Producer(cell.url, {"broker.durable": "replica"}).task.delay()
    producer = Producer(cell.url, HASTY | {"broker.durable": "replica"})
    cell.replica.send(signal.SIGSTOP)
    submits: list[Callable[[], Any]] = [
        lambda: producer.flow.submit(1),
        producer.task.delay,
        lambda: group(producer.task.s() for _ in range(3)).apply_async(),
    ]
    for submit, count in zip(submits, (1, 1, 3), strict=True):
        with pytest.raises(NotReplicated, match="accepted by the primary but not") as caught:
            submit()
        assert len(caught.value.accepted) == count
    assert producer.flow.submit(2, durable="primary").status().state == "running"


def test_the_rights_of_a_producer_suffice(cell: FailoverCell) -> None:
    Producer(cell.url).flow.submit(0)  # loads the functions
    allowed = rules(Role.PRODUCER, cell="main")
    cell.primary.client.execute_command("ACL", "SETUSER", "producer", "on", ">secret", *allowed)
    producer = Producer(cell.url.replace("://", "://producer:secret@"))
    assert producer.flow.submit(1, durable="replica").status().state == "running"


def test_another_word_for_durable_is_refused(cell: FailoverCell) -> None:
    with pytest.raises(InvalidArgument, match="'disk' is not primary or replica"):
        Producer(cell.url).flow.submit(1, durable="disk")  # type: ignore[arg-type]


def test_the_status_names_the_replicas_and_how_far_behind_they_are(cell: FailoverCell) -> None:
    producer = Producer(cell.url)
    producer.flow.submit(0, durable="replica")
    broker = read_status(producer.aq.store).broker
    assert broker.replication.startswith("a failover may lose what no replica has")
    (replica,) = broker.replicas
    assert (replica.address, replica.online) == (f"127.0.0.1:{cell.replica.port}", True)
    cell.replica.send(signal.SIGSTOP)
    producer.flow.submit(1)
    assert read_status(producer.aq.store).broker.replicas[0].behind > 0
    cell.replica.send(signal.SIGCONT)
    cell.primary.client.client_kill_filter(_type="replica")
    cell.replica.client.replicaof("NO", "ONE")
    alone = wait_until(
        lambda: not (found := read_status(producer.aq.store).broker).replicas and found,
        "the replica has left",
    )
    assert alone.replication == "no replica: what this server loses is lost"
    cell.replica.client.replicaof("127.0.0.1", cell.primary.port)
