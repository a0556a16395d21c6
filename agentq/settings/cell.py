"""Settings of a cell and of what lies in it: broker, blobs, dead letters, retries, runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from agentq.settings.quantities import Address, BlobStoreName, Duration, HomePath, Label, Whole
from agentq.settings.section import DAY, MS, S, Section, setting


class Broker(Section):
    """The Redis or Valkey that holds queues, runs and results."""

    url: Annotated[Address | None, Field(repr=False)] = setting(
        None, "address", "agentq://host:port/db; unset: the embedded server that `agentq up` runs"
    )
    cell: Label = setting("main", "name", "Hash tag of this cell's keys; a run lives in one cell")
    timeout: Duration = setting(
        5 * S, "duration", "A producer's call answers or fails within this", at_least=10 * MS
    )
    durable: Literal["primary", "replica"] = setting(
        "primary",
        "primary or replica",
        "Who must have work before submit returns; replica: what a failover must not lose",
    )
    result_ttl: Duration = setting(
        DAY, "duration", "How long a step's result can be read", at_least=S
    )
    dedupe_ttl: Duration = setting(
        timedelta(minutes=10),
        "duration",
        "A submit repeated with the same id within this is accepted once",
        at_least=S,
    )
    max_payload: Whole = setting(
        262_144,
        "bytes",
        "Largest argument or result that is kept in Redis; beyond it see [blobs]",
        at_least=1024,
    )
    max_length: Whole = setting(
        100_000,
        "messages",
        "Per pool and lane, and as many delayed; beyond it submit raises QueueFull",
        at_least=1,
    )
    max_bytes: Whole = setting(
        268_435_456,
        "bytes",
        "Messages of one pool and lane together, and of those that are delayed",
        at_least=1024,
    )
    max_per_tenant: Whole | None = setting(
        None, "runs", "Unfinished runs of one tenant; unset: no cap of its own", at_least=1
    )
    delivery_limit: Whole = setting(
        3, "deliveries", "A step whose process died this often is dead, not tried again", at_least=1
    )
    park_limit: Duration = setting(
        DAY,
        "duration",
        "A step that no worker has the code of waits this long for one, then it is dead",
        at_least=S,
    )


class Blobs(Section):
    """Arguments and results of runs beyond `broker.max_payload`: kept outside of Redis."""

    store: BlobStoreName | None = setting(
        None,
        "directory, none, URL or module:Class",
        "Where; none: they are refused; s3://bucket/prefix needs agentq[objects]. Unset: a folder, "
        "in production only one that is set",
    )
    directory: HomePath | None = setting(
        None,
        "folder",
        "The same one on every machine of the cell; unset: beside the embedded server's data",
    )
    max_size: Whole = setting(67_108_864, "bytes", "Largest of them", at_least=1024)
    timeout: Duration = setting(
        10 * S, "duration", "One is written or read within this", at_least=10 * MS
    )
    orphan_age: Duration = setting(
        DAY,
        "duration",
        "One of no run is deleted after this; longer than any submit(wait=)",
        at_least=timedelta(hours=1),
    )
    write_limit: Duration = setting(
        timedelta(minutes=5),
        "duration",
        "A step that has ended waits this long for a place that can not be written, then it is "
        "handed back, uncharged",
    )


class Dead(Section):
    """Dead letters: what could not be run, kept for a person."""

    keep: Duration = setting(14 * DAY, "duration", "How long a dead letter is kept", at_least=S)
    max_number: Whole = setting(
        10_000, "letters", "The newest are kept; what is dropped is counted by status", at_least=1
    )
    max_bytes: Whole = setting(
        67_108_864, "bytes", "All dead letters together; the oldest make room", at_least=1024
    )


class Retry(Section):
    """Retries of a pool: a dependency that fails is not to be asked ever more often."""

    budget: Whole = setting(
        20,
        "percent",
        "Of a pool's attempts, how many may be retries; those beyond it wait",
        at_least=0,
        at_most=100,
    )
    per_second: Whole = setting(
        10, "retries", "A pool may start so many in a second, however few its attempts", at_least=1
    )

    def __str__(self) -> str:
        """Return both as the functions read them."""
        return f"{self.budget} {self.per_second}"


class Runs(Section):
    """One execution of a flow: how large it may be and how long it is kept."""

    keep: Duration = setting(
        7 * DAY, "duration", "State, events and result of a finished run stay this long", at_least=S
    )
    max_members: Whole = setting(
        10_000, "steps", "All fan-outs of one run together; a plan gone wrong ends here", at_least=1
    )
    max_bytes: Whole = setting(
        67_108_864, "bytes", "All messages and outcomes of one run together", at_least=1024
    )
    at_once: Whole = setting(
        256, "steps", "Members of a fan-out in flight when each() does not say", at_least=1
    )
    join_ttl: Duration = setting(
        7 * DAY, "duration", "How long a join waits for its last member", at_least=S
    )
