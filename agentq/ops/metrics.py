"""What Prometheus is told of a cell, read from it at each scrape: also while no worker lives.

Nothing is kept between scrapes, so any number of these may run. Rates are Prometheus' to make, from
the counters. A worker is there twice: by its lease (`agentq_worker_lease_seconds`), and by what it
consumes (`agentq_worker_done_total`, `agentq_worker_stalled`), which is what counts.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from agentq.errors import AddressInUse, BrokerUnavailable, SettingsError
from agentq.ops import outcomes
from agentq.ops.families import Sample, counter, gauge
from agentq.ops.pausing import Kind
from agentq.ops.planned import Planned, planned_here
from agentq.ops.replies import facts, pairs
from agentq.ops.status import CellStatus, Queue, Worker, every_lane, read_status

if TYPE_CHECKING:
    from agentq.broker.app import App

_ADMITTED = 0.8
"""Of maxmemory: from there on the functions admit no new work (`MEMORY_SHARE`)."""
_LANE = ("pool", "lane")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One queue, with what else takes its room."""

    queue: Queue
    delayed: int
    """Delayed by who sent them; they have as much room of their own."""
    aside: int
    """What was in the queue and comes back: in its backoff, parked, put aside by a pause."""
    fill: float
    """Of its room, by messages or by bytes, whichever is fuller; at 1 submit raises QueueFull."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What a pool did, since the cell began."""

    name: str
    completed: int
    retried: int
    workers: int
    """That hold a lease and are not stalled."""
    waiting: int
    """Retries that wait for the retry budget."""
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A cell at one scrape."""

    cell: CellStatus
    server: dict[str, str]
    """What INFO says."""
    lanes: tuple[Lane, ...]
    pools: tuple[Pool, ...]
    ended: dict[str, str]
    """What the hash `counts` says."""
    planned: tuple[Planned, ...]


def read_metrics(aq: App) -> Reading:
    """Return what is to be told of *aq*'s cell; its settings say how much room there is.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    cell = read_status(aq.store, brief=True)
    queues = every_lane(cell.queues, aq.settings.pools)
    pools = list(dict.fromkeys([*aq.settings.pools, *(queue.pool for queue in queues)]))
    keys = aq.store.keys
    info, ended, *answers = aq.store.pipeline(
        [
            ("INFO",),
            ("HGETALL", keys.counts()),
            *(("HMGET", keys.load(pool), "n", "f") for pool in pools),
            *(_beside(keys.load(queue.pool), queue.lane) for queue in queues),
            *(
                ("MEMORY", "USAGE", keys.stream(queue.pool, queue.lane), "SAMPLES", 100)
                for queue in queues
            ),
        ]
    )
    done, rest = answers[: len(pools)], answers[len(pools) :]
    beside, sizes = rest[: len(queues)], rest[len(queues) :]
    most = (aq.settings.broker.max_length, aq.settings.broker.max_bytes)
    return Reading(
        cell=cell,
        server=facts(info),
        lanes=tuple(map(_lane, queues, beside, sizes, [most] * len(queues))),
        pools=tuple(_pool(name, counts, cell) for name, counts in zip(pools, done, strict=True)),
        ended=pairs(ended),
        planned=planned_here(aq.settings, cell.workers),
    )


def _beside(load: str, lane: str) -> tuple[str, ...]:
    return ("HMGET", load, f"d:{lane}", f"a:{lane}", f"ab:{lane}")


def _lane(queue: Queue, beside: Any, size: Any, most: tuple[int, int]) -> Lane:
    delayed, aside, aside_bytes = (int(value or 0) for value in beside)
    length, size = queue.waiting + queue.held + aside, _number(size) + aside_bytes
    return Lane(
        queue=queue, delayed=delayed, aside=aside, fill=max(length / most[0], size / most[1])
    )  # fmt: skip


def _number(reply: Any) -> int:
    return reply if isinstance(reply, int) else 0  # nil: there is no such queue


def _pool(name: str, counts: Any, cell: CellStatus) -> Pool:
    ended, retried = (int(value or 0) for value in counts)
    return Pool(
        name=name,
        completed=ended,
        retried=retried,
        workers=sum(worker.state == "up" and name in worker.pools for worker in cell.workers),
        waiting=cell.retries.get(name, 0),
        paused=any((pause.kind, pause.name) == (Kind.POOL, name) for pause in cell.pauses),
    )


class CellMetrics(Collector):
    """A reading as Prometheus' families; one scrape costs the server some thirty short commands."""

    def __init__(self, *, aq: App) -> None:
        """Take the app whose cell it is."""
        self._aq = aq

    def collect(self) -> Iterator[Metric]:
        """Yield what there is; of a broker that is away, that it is."""
        try:
            reading = read_metrics(self._aq)
        except BrokerUnavailable:
            yield gauge("broker_up", "Whether the broker answers", [((), 0)])
            return
        yield gauge("broker_up", "Whether the broker answers", [((), 1)])
        yield from _of_server(reading.server)
        yield from _of_replicas(reading.cell)
        yield from _of_lanes(reading.lanes)
        yield from _of_pools(reading.pools)
        yield from _of_plan(reading.planned)
        yield from outcomes.told(reading.ended, flows=getattr(self._aq, "flows", ()))
        yield from _of_cell(reading.cell)
        yield _of_dead_letters(reading)
        yield from _of_workers(reading.cell.workers)


def page(aq: App) -> bytes:
    """Return a scrape of *aq*'s cell in Prometheus' text format."""
    return generate_latest(_registry(aq))


@contextmanager
def serving(aq: App, *, host: str, port: int) -> Iterator[tuple[str, threading.Thread]]:
    """Serve it over HTTP within the block; yields the address and the thread that serves.

    Args:
        aq: the app whose cell it is.
        host: where it listens. There is no login: names of pools, tasks and machines are shown.
        port: 0 takes any free one.

    Raises:
        AddressInUse: something listens there.
        SettingsError: it can not listen there.
        BrokerNotConfigured: there is no cell to tell of.
    """
    _ = aq.address  # fails here, and not at every scrape
    try:
        server, thread = start_http_server(port, addr=host, registry=_registry(aq))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"metrics cannot be served on {host}:{port}: the port is in use; end what listens "
                f"there, or choose another: --port, or metrics.port in the settings "
                f"(AGENTQ_METRICS__PORT={port + 1})"
            ) from error
        raise SettingsError(
            f"metrics cannot be served on {host}:{port}: {error.strerror}; "
            "set metrics.host and metrics.port to an address of this machine"
        ) from error
    try:
        yield f"http://{host}:{server.server_port}/metrics", thread
    finally:
        server.shutdown()
        server.server_close()


def _registry(aq: App) -> CollectorRegistry:
    found = CollectorRegistry()
    found.register(CellMetrics(aq=aq))
    return found


# -- what is told ---------------------------------------------------------------------------------


def _of_server(server: dict[str, str]) -> Iterator[Metric]:
    def number(name: str) -> float:
        return float(server.get(name) or 0)

    def fine(*names: str) -> int:
        return int(all(server.get(name, "ok") == "ok" for name in names))

    limit = number("maxmemory")
    fill = number("used_memory") / (limit * _ADMITTED) if limit else 0
    yield from (
        gauge(f"broker_{name}", text, [((), value)])
        for name, text, value in (
            ("memory_bytes", "Memory that the server uses", number("used_memory")),
            ("memory_limit_bytes", "Its maxmemory; 0: no limit", limit),
            ("memory_fill_ratio", "Of what it may use for new work; at 1 all is refused", fill),
            ("connections", "Clients connected", number("connected_clients")),
            ("connections_limit", "Its maxclients", number("maxclients")),
            ("appendonly", "Whether it writes an append-only file", number("aof_enabled")),
            (
                "persistence_ok",
                "Whether its last write to disk, rewrite and snapshot succeeded",
                fine(
                    "aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"
                ),
            ),
            ("fork_seconds", "How long its last fork held it up", number("latest_fork_usec") / 1e6),
            ("uptime_seconds", "Since its start", number("uptime_in_seconds")),
        )
    )
    yield from (
        counter(f"broker_{name}", text, [((), number(field))])
        for name, text, field in (
            ("fsyncs_delayed", "Writes that waited for the disk", "aof_delayed_fsync"),
            ("evicted", "Keys it deleted for want of memory: never, as configured", "evicted_keys"),
            ("connections_refused", "Beyond maxclients", "rejected_connections"),
        )
    )


def _of_replicas(cell: CellStatus) -> Iterator[Metric]:
    replicas = cell.broker.replicas
    online = sum(replica.online for replica in replicas)
    yield gauge("broker_replicas", "Replicas that follow", [((), online)])
    yield gauge(
        "broker_replica_behind_bytes", "What it has not confirmed",
        [((replica.address,), replica.behind) for replica in replicas], ("replica",),
    )  # fmt: skip


def _of_lanes(lanes: Iterable[Lane]) -> Iterator[Metric]:
    told: tuple[tuple[str, str, Callable[[Lane], float]], ...] = (
        ("waiting", "Messages that wait", lambda lane: lane.queue.waiting),
        ("leased", "Handed to workers and not ended", lambda lane: lane.queue.held),
        ("delayed", "Delayed by who sent them", lambda lane: lane.delayed),
        ("aside", "In their backoff, parked or paused: they come back", lambda lane: lane.aside),
        (
            "oldest_seconds",
            "How long the first of the waiting has waited",
            lambda lane: (lane.queue.oldest_ms or 0) / 1000,
        ),
        ("fill_ratio", "Of its room; at 1 submit raises QueueFull", lambda lane: lane.fill),
    )
    for name, text, value in told:
        samples = [((one.queue.pool, one.queue.lane), value(one)) for one in lanes]
        yield gauge(f"queue_{name}", text, samples, _LANE)


def _of_pools(pools: Iterable[Pool]) -> Iterator[Metric]:
    def each(value: Callable[[Pool], float]) -> list[Sample]:
        return [((pool.name,), value(pool)) for pool in pools]

    label = ("pool",)
    ended, retried = each(lambda pool: pool.completed), each(lambda pool: pool.retried)
    yield counter("pool_completed", "Steps and tasks that ended", ended, label)
    yield counter("pool_retried", "Attempts that ended in a retry", retried, label)
    held = each(lambda pool: pool.waiting)
    yield gauge("pool_retries_held", "Retries that wait for the retry budget", held, label)
    workers, paused = each(lambda pool: pool.workers), each(lambda pool: pool.paused)
    yield gauge("pool_workers", "Workers that hold a lease and are not stalled", workers, label)
    yield gauge("pool_paused", "Whether it is paused", paused, label)


def _of_plan(pools: Iterable[Planned]) -> Iterator[Metric]:
    planned = [((one.pool,), one.planned) for one in pools]
    up = [((one.pool,), one.up) for one in pools]
    label = ("pool",)
    yield gauge("pool_processes_planned", "Workers that are to be there", planned, label)
    yield gauge("pool_processes_up", "Of those: that hold a lease", up, label)


def _of_cell(cell: CellStatus) -> Iterator[Metric]:
    pauses = [((pause.kind.value, pause.name), pause.for_ms / 1000) for pause in cell.pauses]
    parked = [((one.lacking,), one.count) for one in cell.parked]
    yield gauge("delayed", "Messages that are delayed, parked ones too", [((), cell.delayed)])
    yield gauge("paused_seconds", "Since when it is paused", pauses, ("kind", "name"))
    yield gauge("parked", "Messages whose code no worker has", parked, ("lacking",))
    yield gauge("dead_letters", "Dead letters that are kept", [((), cell.dead.number)])
    yield gauge("dead_letters_bytes", "Of all of them", [((), cell.dead.bytes)])
    yield gauge("runs_known", "Runs that are kept, ended or not", [((), cell.runs_known)])


def _of_dead_letters(reading: Reading) -> Metric:
    # Lanes that never had one are told too: the first one is to be seen as growth.
    lanes = [f"{lane.queue.pool}:{lane.queue.lane}" for lane in reading.lanes]
    added = dict.fromkeys(lanes, 0) | dict(reading.cell.dead.died)
    samples = [((*name.rsplit(":", 1),), count) for name, count in added.items()]
    return counter("dead_letters_added", "Dead letters ever added", samples, _LANE)


def _of_workers(workers: Iterable[Worker]) -> Iterator[Metric]:
    # A process that took a new lease is there twice until its old one is reaped.
    latest = {one.name: one for one in sorted(workers, key=lambda worker: worker.lease_ms)}
    states = Counter({"up": 0, "stalled": 0, "lost": 0})
    states.update(worker.state for worker in latest.values())
    yield gauge("workers", "Workers", [((state,), n) for state, n in states.items()], ("state",))
    told: tuple[tuple[str, str, Callable[[Worker], float]], ...] = (
        ("running", "Steps it runs", lambda one: one.running),
        ("slots", "Steps it may run at once", lambda one: one.slots),
        ("lease_seconds", "Left of its lease; below 0 it is lost", lambda one: one.lease_ms / 1000),
        ("still_seconds", "How long it has had room and taken nothing",
         lambda one: one.still_ms / 1000),
        ("stalled", "Whether it takes nothing though it has room and work waits",
         lambda one: one.stalled),
        ("memory_bytes", "Resident; 0: it does not say", lambda one: one.memory),
        ("near_limit", "Whether it has used 80 % of one of the kernel's limits",
         lambda one: one.near != ""),
        ("clock_ahead_seconds", "Of the broker's clock", lambda one: one.skew_ms / 1000),
    )  # fmt: skip
    names = [(one, (one.name, ",".join(one.pools))) for one in latest.values()]
    label = ("worker", "pools")
    for name, text, value in told:
        yield gauge(f"worker_{name}", text, [(who, value(one)) for one, who in names], label)
    done = [(who, float(one.done)) for one, who in names]
    yield counter("worker_done", "Steps and tasks that it ended", done, label)
