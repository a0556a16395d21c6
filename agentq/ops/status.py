"""What `agentq status` shows, read from the cell: broker, queues, workers, runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import orjson

from agentq.broker.routing import LANES
from agentq.ops.dead import Kept, kept, questions
from agentq.ops.known import Known, read_known
from agentq.ops.pausing import Kind, Pause, read_pauses
from agentq.ops.replies import facts as _facts
from agentq.ops.replies import pairs as _pairs
from agentq.ops.replies import scored as _scored
from agentq.runs.record import RunState
from agentq.settings.model import Pool
from agentq.store.client import Store
from agentq.store.replication import Replica, replicas_of

RUNS_COUNTED = 10_000
"""The newest runs, whose states are counted."""
RUNS_LISTED = 10
STALLED_MS = 30_000
"""A worker with room that takes nothing for so long while work waits for it is stalled; it asks for
work every few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The server; memory in bytes, `memory_limit` 0 where there is none."""

    address: str
    server: str
    persistence: str
    """In words: what a crash may cost."""
    replication: str
    """In words: what a failover may cost."""
    replicas: tuple[Replica, ...]
    memory: int
    memory_limit: int
    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One pool's lane."""

    pool: str
    lane: str
    waiting: int
    held: int
    """Handed to workers and not ended."""
    oldest_ms: int | None
    """How long the first of the waiting has waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker process, as it reported at its last renewal."""

    name: str
    pools: tuple[str, ...]
    pid: int
    cores: tuple[int, ...]
    running: int
    slots: int
    done: int
    still_ms: int
    """How long it has had room and taken nothing."""
    stalled: bool
    """Whether that is `STALLED_MS` or more, while work that it may take waited as long."""
    lease_ms: int
    """Left of its lease; below 0 it is taken for dead."""
    skew_ms: int
    """How far its wall clock is ahead of the broker's."""
    memory: int
    """Resident, in bytes; its children's is not in it."""
    host: str
    build: str
    """agentq's version there, and the revision of the functions that it was made with."""
    allocator: str
    """The one that serves its malloc, as it was read back."""
    unwritten: int = 0
    """Of those that run: ended, and waiting for blob storage that can not be written."""
    near: str = ""
    """What it has nearly used up of the kernel's limits, e.g. ``open files: 52 of 64 (...)``."""

    @property
    def state(self) -> Literal["up", "stalled", "lost"]:
        """Whether it holds its lease, and takes work where there is some."""
        if self.lease_ms <= 0:
            return "lost"
        return "stalled" if self.stalled else "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Delayed messages whose code no worker that saw them has."""

    lacking: str
    """``task <name>`` or ``flow <name>``."""
    count: int
    for_ms: int
    """Since the first of them was handed back."""
    known: bool = False
    """Whether a worker has it by now: then they are handed out when they are offered next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """One of the newest runs."""

    id: str
    flow: str
    state: str
    age_ms: int
    """Since it was submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStatus:
    """A cell at one moment."""

    broker: Broker
    queues: tuple[Queue, ...]
    delayed: int
    dead: Kept
    parked: tuple[Parked, ...]
    retries: dict[str, int]
    """Pool -> of what is delayed, how many retries wait for the pool's budget."""
    pauses: tuple[Pause, ...]
    workers: tuple[Worker, ...]
    runs: dict[str, int]
    """State -> how many of the newest `RUNS_COUNTED` runs."""
    runs_known: int
    recent: tuple[Recent, ...]
    """The newest first."""

    def unserved(self, pools: Iterable[str]) -> tuple[str, ...]:
        """Return those of *pools* that no living worker serves, in order."""
        served = {pool for worker in self.workers if worker.state == "up" for pool in worker.pools}
        return tuple(sorted(set(pools) - served))


def read_status(store: Store, *, brief: bool = False) -> CellStatus:
    """Return the cell's status; some fifteen commands in few round trips, none that blocks it.

    *brief*: without runs, and without what only the server's admin is told.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    keys, counted = store.keys, 0 if brief else RUNS_COUNTED
    info, now, lanes, delayed, dead, counts, leases, known, newest, *config = store.pipeline(
        [
            ("INFO",),
            ("TIME",),
            ("SMEMBERS", keys.lanes()),
            ("HLEN", keys.delayed_messages()),
            *questions(keys),
            ("ZRANGE", keys.workers(), 0, -1, "WITHSCORES"),
            ("ZCARD", keys.runs()),
            ("ZRANGE", keys.runs(), "+inf", "-inf", "BYSCORE", "REV", "LIMIT", 0, counted),
            *([] if brief else [("CONFIG", "GET", "appendfsync")]),
        ]
    )
    now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
    queues = _queues(store, [lane.decode() for lane in lanes], now_ms)
    pauses, parked = read_pauses(store, now_ms), _parked(store, now_ms)
    # A thousand workers say a lot: they are asked only where there is something to look up.
    there = read_known(store) if not brief and (pauses or parked) else Known()
    return CellStatus(
        broker=_broker(store, info, config),
        queues=queues,
        delayed=delayed,
        dead=kept(dead, counts),
        parked=tuple(replace(one, known=_is_known(there, one)) for one in parked),
        retries=_retries(store),
        pauses=tuple(
            replace(one, unknown=there.lacks(one.kind, one.name) is not None) for one in pauses
        ),
        workers=_workers(store, _scored(leases), now_ms, _left_waiting(queues, pauses)),
        runs=_runs(store, [run.decode() for run in newest]),
        runs_known=known,
        recent=_recent(store, [run.decode() for run in newest[:RUNS_LISTED]], now_ms),
    )


def every_lane(seen: Iterable[Queue], pools: Mapping[str, Pool]) -> list[Queue]:
    """Return the lanes of the settings, empty where not *seen*, then what else was seen."""
    configured = {
        (pool, str(lane)): Queue(pool=pool, lane=lane, waiting=0, held=0, oldest_ms=None)
        for pool, settings in pools.items()
        for lane in settings.lanes
    }
    return list((configured | {(queue.pool, queue.lane): queue for queue in seen}).values())


def _broker(store: Store, info: Any, config: list[Any]) -> Broker:
    facts, replicas = _facts(info), replicas_of(info)
    version = facts.get("valkey_version") or facts.get("redis_version", "?")
    name = facts.get("server_name", "redis").capitalize()
    return Broker(
        address=str(store.address),
        server=f"{name} {version}",
        persistence=_persistence(facts, _pairs(config[0]) if config else {}),
        replication=_replication(facts, replicas),
        replicas=replicas,
        memory=int(facts.get("used_memory", 0)),
        memory_limit=int(facts.get("maxmemory", 0)),
        connections=int(facts.get("connected_clients", 0)),
    )


def _persistence(facts: dict[str, str], config: dict[str, str]) -> str:
    if facts.get("aof_enabled", "0") == "0":
        return "no append-only file: a restart loses what waits"
    match config.get("appendfsync"):
        case None:
            return "append-only file; how often it is synced only this server's admin may ask"
        case "always":
            return "append-only file, fsync always: a crash loses nothing"
        case "everysec":
            return "append-only file, fsync every second: a crash may lose two seconds"
        case other:
            return f"append-only file, fsync {other}: a crash loses what the system had not written"


def _replication(facts: dict[str, str], replicas: tuple[Replica, ...]) -> str:
    if facts.get("role") == "slave":
        return f"a replica of {facts.get('master_host')}:{facts.get('master_port')}: takes no work"
    if not any(replica.online for replica in replicas):
        return "no replica: what this server loses is lost"
    return 'a failover may lose what no replica has; submit(durable="replica") waits for one'


def _queues(store: Store, lanes: list[str], now_ms: int) -> tuple[Queue, ...]:
    split = [(pool, lane) for pool, _, lane in (name.rpartition(":") for name in lanes)]
    split.sort(key=lambda pair: (pair[0], LANES.index(pair[1]) if pair[1] in LANES else 99))
    streams = [
        (store.keys.returned(pool, lane), store.keys.stream(pool, lane)) for pool, lane in split
    ]
    flat = [stream for pair in streams for stream in pair]
    lengths = store.pipeline([("XLEN", stream) for stream in flat])
    groups = store.pipeline([("XINFO", "GROUPS", stream) for stream in flat])
    heads = store.pipeline(
        [
            ("XRANGE", stream, f"({_last_read(group)}", "+", "COUNT", 1)
            for stream, group in zip(flat, groups, strict=True)
        ]
    )
    found = [
        (int(length), _held(group), _age(head, now_ms))
        for length, group, head in zip(lengths, groups, heads, strict=True)
    ]
    return tuple(
        _queue(pool, lane, found[2 * place : 2 * place + 2])
        for place, (pool, lane) in enumerate(split)
    )


def _queue(pool: str, lane: str, both: list[tuple[int, int, int | None]]) -> Queue:
    held = sum(part[1] for part in both)
    ages = [part[2] for part in both if part[2] is not None]
    return Queue(
        pool=pool,
        lane=lane,
        waiting=sum(part[0] for part in both) - held,
        held=held,
        oldest_ms=max(ages, default=None),
    )


def _held(groups: Any) -> int:
    return 0 if isinstance(groups, Exception) or not groups else int(_pairs(groups[0])["pending"])


def _last_read(groups: Any) -> str:
    unread = "0-0"
    if isinstance(groups, Exception) or not groups:
        return unread
    return _pairs(groups[0])["last-delivered-id"]


def _age(head: Any, now_ms: int) -> int | None:
    if isinstance(head, Exception) or not head:
        return None
    return max(0, now_ms - int(head[0][0].split(b"-")[0]))


def _parked(store: Store, now_ms: int) -> tuple[Parked, ...]:
    counts, since = store.pipeline(
        [("HGETALL", store.keys.parked()), ("HGETALL", store.keys.parked_since())]
    )
    first = _pairs(since)
    return tuple(
        Parked(lacking=name, count=int(count), for_ms=now_ms - int(first.get(name, now_ms)))
        for name, count in sorted(_pairs(counts).items())
    )


def _is_known(known: Known, parked: Parked) -> bool:
    kind, _, name = parked.lacking.partition(" ")
    return known.has("step" if kind == "task" else kind, name)


def _retries(store: Store) -> dict[str, int]:
    pools = sorted(pool.decode() for pool in store.command("ZRANGE", store.keys.retrying(), 0, -1))
    waiting = store.pipeline([("ZCARD", store.keys.retries(pool)) for pool in pools])
    return {pool: count for pool, count in zip(pools, waiting, strict=True) if count}


_Lanes = frozenset[tuple[str, str]]
"""Pool and lane of each."""


def _left_waiting(queues: Iterable[Queue], pauses: Iterable[Pause]) -> _Lanes:
    """Return the lanes whose work has waited so long that a worker with room had taken it."""
    paused = {pause.name for pause in pauses if pause.kind is Kind.POOL}
    old = {(one.pool, one.lane) for one in queues if (one.oldest_ms or 0) >= STALLED_MS}
    return frozenset((pool, lane) for pool, lane in old if pool not in paused)


def _workers(
    store: Store,
    leases: list[tuple[bytes, float]],
    now_ms: int,
    left: _Lanes = frozenset(),
) -> tuple[Worker, ...]:
    """Return the workers; *left*: lanes whose work waits though it could be taken."""
    names = [name.decode() for name, _ in leases]
    reports = store.pipeline([("HGET", store.keys.worker(name), "report") for name in names])
    found = []
    for name, report, (_, until) in zip(names, reports, leases, strict=True):
        said = orjson.loads(report) if isinstance(report, bytes) else {}
        if not said.get("pools"):
            continue  # Flower, `celery events`: they hold a lease and take no work
        worker = Worker(
            name=said.get("hostname", name.partition("#")[0]),
            pools=tuple(said.get("pools", ())),
            pid=said.get("pid", 0),
            cores=tuple(said.get("cores", ())),
            running=said.get("running", 0),
            slots=said.get("slots", 0),
            done=said.get("done", 0),
            still_ms=said.get("still_ms", 0),
            stalled=_is_stalled(said, left),
            lease_ms=int(until) - now_ms,
            skew_ms=said.get("skew_ms", 0),
            memory=said.get("rss", 0),
            host=said.get("host", ""),
            build=said.get("build", ""),
            allocator=said.get("allocator", ""),
            unwritten=said.get("unwritten", 0),
            near=said.get("near", ""),
        )
        found.append(worker)
    return tuple(sorted(found, key=lambda worker: worker.name))


def _is_stalled(said: dict[str, Any], left: _Lanes) -> bool:
    has_room = said.get("running", 0) < said.get("slots", 0)
    still = said.get("still_ms", 0) >= STALLED_MS
    takes = product(said["pools"], said.get("lanes", LANES))  # Celery's own pools take every lane
    return has_room and still and not left.isdisjoint(takes)


def _runs(store: Store, runs: list[str]) -> dict[str, int]:
    states = store.pipeline([("HGET", store.keys.run(run), "state") for run in runs])
    counted = Counter(state.decode() for state in states if isinstance(state, bytes))
    return {state.value: counted[state.value] for state in RunState if counted[state.value]}


def _recent(store: Store, runs: list[str], now_ms: int) -> tuple[Recent, ...]:
    records = store.pipeline([("HGETALL", store.keys.run(run)) for run in runs])
    found = []
    for run, record in zip(runs, records, strict=True):
        if fields := _pairs(record):
            flow = orjson.loads(fields.get("record") or b"{}").get("flow", "")
            age = max(0, now_ms - int(fields["at"]))
            found.append(Recent(id=run, flow=flow, state=fields["state"], age_ms=age))
    return tuple(found)
