"""Every file of a machine's units as text: the same for the same arguments, nothing is touched.

The templates (`templates/`, and to read in the repository's deploy/systemd) are whole unit files
with ``@NAME@`` where a value goes; a line that is nothing but an empty value is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from agentq.clock import format_duration
from agentq.errors import DeployError, SettingsError
from agentq.host.limits import OPEN_FILES
from agentq.host.plan import Plan, Process
from agentq.ops.deploy.deployment import STATE, Given, Site
from agentq.settings import Settings
from agentq.settings.sources import CREDENTIAL_PREFIX, variable_of
from agentq.store.address import parse
from agentq.store.embedded import EmbeddedServer

TEMPLATES = Path(__file__).parent / "templates"
_UNITS = "etc/systemd/system"
CREDENTIALS = "etc/agentq/credentials"
ENVIRONMENT = "etc/agentq/environment"
CODE = "etc/agentq/code"
PLAN = "etc/agentq/plan.json"
SYSCTL = "etc/sysctl.d/60-agentq.conf"
_SEAT = "agentq-worker@{}.service.d/20-seat.conf"
_PLACE = re.compile(r"@([A-Z_]+)@")

WATCHDOG_SLACK = timedelta(seconds=2)
"""Signs of life come every second: silence for hang_timeout is noticed a little later."""
OPTIONAL = ("agentq-dashboard.service", "agentq-metrics.service")
"""What the target has where it is enabled."""
STOP_SLACK = timedelta(seconds=10)
_OVERCOMMIT = """
# The broker is on this machine, and forks to rewrite its file: where the kernel must have all its
# memory twice, which it may think with 0 and does with 2, that is refused, and the file grows until
# the disk is full. The server's log asks for this; not measured, since it is the whole machine's.
vm.overcommit_memory = 1"""
_WEIGHT = {"exclusive": 800, "shared": 100}
_OOM_SCORE = {"exclusive": 0, "shared": 300}
_SLOWED_PERCENT, _SLOWED_BYTES = 2, 64 << 20
"""How far below MemoryMax the kernel begins to slow a process down; the less of both.

At 10 % a step that grew was slowed for half a minute: its loop stood still, and the watchdog ended
as a hang what was a want of memory (`tests/fault/test_numa_machine.py` has such a step).
"""


@dataclass(frozen=True, kw_only=True)
class File:
    """What is written, and for whom to read."""

    text: str
    mode: int = 0o644


def render(
    site: Site, settings: Settings, plan: Plan, given: Given,
    allocators: Mapping[str, Mapping[str, str]],
) -> dict[str, File]:  # fmt: skip
    """Return path below / -> file, sorted.

    Args:
        site: the app and where it is.
        settings: as the units will read them.
        plan: which process gets what.
        given: settings that are in no file.
        allocators: pool -> the variables that choose its allocator.

    Raises:
        BrokerNotConfigured: production without broker.url.
        DeployError: a variable can not be written down.
    """
    embedded = settings.require_broker() is None
    services = _services(site, settings, plan, given, embedded=embedded)
    workers = [_instance(one, settings, allocators[one.pool]) for one in plan.processes]
    here = _broker_is_here(settings)
    return dict(sorted([*services, *workers, *_machine(site, plan, given, broker_here=here)]))


def notes(settings: Settings, given: Given) -> list[str]:
    """Return what who renders is to know of where the units' rights and settings come from."""
    found = []
    if given.code:
        said = ", ".join(f"{name}={value}" for name, value in given.code.items())
        found.append(f"from the app's code, as it is now: {said}")
    if settings.broker.url and not settings.dashboard.broker_url and _lookers(settings):
        found.append(
            f"{' and '.join(_lookers(settings))} run with the workers' broker.url, which may "
            "change the cell: give them that of a user that only looks (agentq broker acl has its "
            f"line), as {variable_of('dashboard.broker_url')}"
        )
    return found


def unit_path(unit: str) -> str:
    """Return where a unit's file is, below /."""
    return f"{_UNITS}/{unit}"


def worker_files(instance: str) -> tuple[str, str]:
    """Return where the files are that a worker process alone has, and its pool: below /."""
    pool = instance.rpartition("-")[0]
    return unit_path(_SEAT.format(instance)), unit_path(f"agentq-{pool}.slice")


def embedded_variables() -> dict[str, str]:
    """Return the settings of whoever uses the embedded server of a unit."""
    url = EmbeddedServer(data_dir=STATE).url
    return {variable_of("embedded.data_dir"): str(STATE), variable_of("broker.url"): url}


Rendered = tuple[str, File]


def _services(
    site: Site, settings: Settings, plan: Plan, given: Given, *, embedded: bool
) -> list[Rendered]:
    where = {"APP": site.app, "FOLDER": str(site.folder), "PYTHON": str(site.python)}
    broker, lookers = ["broker"] if embedded else [], _lookers(settings)
    wants = [
        *(f"agentq-{one}" for one in broker),
        *(f"agentq-worker@{p.name}" for p in plan.processes),
    ]
    found = [
        _unit("agentq.target", {"WANTS": "\n".join(f"Wants={one}.service" for one in wants)}),
        _unit("agentq.slice", {}),
        _unit("agentq-worker@.service", {**where, **_limits(settings)}),
        *(_unit(f"agentq-{service}.service", where) for service in (*broker, *lookers)),
    ]
    if embedded:
        found.append(_broker_seat(plan))
    for service in ("worker@", *broker, *lookers):
        own = settings.dashboard.broker_url is not None and service in lookers
        load = _broker_access(given, embedded=embedded, own=own)
        common = {**where, "USER": site.user, "BROKER": "\n".join(load)}
        to = f"agentq-{service}.service.d/10-common.conf"
        found.append(_unit("agentq-common.conf", common, to=to))
    for pool in dict.fromkeys(one.pool for one in plan.processes):
        purpose = settings.pools[pool].purpose
        values = {"POOL": pool, "PURPOSE": purpose, "CPU_WEIGHT": str(_WEIGHT[purpose])}
        found.append(_unit("agentq-POOL.slice", values, to=f"agentq-{pool}.slice"))
    return found


def _limits(settings: Settings) -> dict[str, str]:
    drain = settings.worker.drain_timeout
    return {
        "DRAIN": format_duration(drain),
        "STOP": format_duration(drain + STOP_SLACK),
        "WATCHDOG": _watchdog(settings),
    }


def _watchdog(settings: Settings) -> str:
    """Return the lines that end a hung worker."""
    hang = settings.worker.hang_timeout
    # A task of solo stands in its loop's place for as long as it takes.
    moves = "process" if settings.worker.stock_pool == "solo" else "loop"
    return (
        f"# worker.hang_timeout ({format_duration(hang)}) and "
        f"{format_duration(WATCHDOG_SLACK)}: signs of life come each second, while {moves} and "
        f"lease move.\nWatchdogSec={format_duration(hang + WATCHDOG_SLACK)}\n"
        "# It ends by SIGABRT, and prints where each thread stood; by SIGKILL if it can not.\n"
        "TimeoutAbortSec=5"
    )


def _lookers(settings: Settings) -> list[str]:
    """Return which services there are that only look; `OPTIONAL` are their units."""
    asked = {"dashboard": settings.dashboard.unit, "metrics": settings.metrics.unit}
    return [service for service, wanted in asked.items() if wanted]


def _broker_access(given: Given, *, embedded: bool, own: bool) -> list[str]:
    """Return the lines that hand a unit its secrets; *own*: the broker by dashboard.broker_url."""
    withheld = "broker.url" if own else "dashboard.broker_url"
    keys = [key for key in given.secret if key != withheld]
    load = [f"LoadCredential={CREDENTIAL_PREFIX}{key}:/{_credential(key)}" for key in keys]
    embedded_ones = embedded_variables() if embedded else {}
    return [*load, *(_assignment(*pair) for pair in embedded_ones.items())]


def _instance(process: Process, settings: Settings, allocator: Mapping[str, str]) -> Rendered:
    pool = settings.pools[process.pool]
    oom = _OOM_SCORE[pool.purpose] if pool.oom_score is None else pool.oom_score
    values = {
        "INSTANCE": process.name,
        "REASON": process.reason,
        "CORES": _cores(process.all_cores),
        "NUMA": _numa(process.node),
        "MEMORY_HIGH": str(_memory_high(process.memory_bytes)),
        "MEMORY_MAX": str(process.memory_bytes),
        "CPU_QUOTA": f"CPUQuota={pool.cpu_quota}%" if pool.cpu_quota else "",
        "NICE": f"Nice={pool.nice}" if pool.nice is not None else "",
        "OOM": str(oom),
        "FILES": str(max(process.open_files, OPEN_FILES)),
        "FILES_NEED": str(process.open_files),
        "TASKS": str(process.task_limit),
        "TASKS_NEED": str(process.tasks),
        "ALLOCATOR": "\n".join(_assignment(*pair) for pair in allocator.items()),
    }
    return _unit("agentq-worker@INSTANCE.conf", values, to=_SEAT.format(process.name))


def _memory_high(most: int) -> int:
    return most - min(most * _SLOWED_PERCENT // 100, _SLOWED_BYTES)


def _broker_seat(plan: Plan) -> Rendered:
    seat = plan.broker
    cores = f"CPUAffinity=\nCPUAffinity={_cores(seat.cores)}" if seat.cores else ""
    values = {"REASON": seat.reason, "AFFINITY": cores, "NUMA": _numa(seat.node)}
    return _unit("agentq-broker.conf", values, to="agentq-broker.service.d/20-seat.conf")


def _cores(cores: Sequence[int]) -> str:
    return " ".join(map(str, cores))


def _numa(node: int | None) -> str:
    return f"NUMAPolicy=bind\nNUMAMask={node}" if node is not None else ""


def _broker_is_here(settings: Settings) -> bool:
    try:
        return settings.broker.url is None or parse(settings.broker.url).local
    except SettingsError:  # Celery's own transport
        return False


def _machine(site: Site, plan: Plan, given: Given, *, broker_here: bool) -> list[Rendered]:
    memory = _OVERCOMMIT if broker_here else ""
    user = {"USER": site.user}
    secrets = [
        (_credential(key), File(text=value, mode=0o600)) for key, value in given.secret.items()
    ]
    return [
        (PLAN, File(text=plan.as_json().decode() + "\n")),
        (ENVIRONMENT, _filled("environment", {"ENVIRONMENT": _assignments(given.plain)})),
        (CODE, _filled("code", {"ENVIRONMENT": _assignments(given.code)})),
        ("etc/sysusers.d/agentq.conf", _filled("sysusers.conf", user)),
        ("etc/tmpfiles.d/agentq.conf", _filled("tmpfiles.conf", user)),
        ("etc/security/limits.d/agentq.conf", _filled("limits.conf", user)),
        (SYSCTL, _filled("sysctl.conf", {"BROKER": memory})),
        *secrets,
    ]


def _unit(template: str, values: Mapping[str, str], *, to: str | None = None) -> Rendered:
    escaped = {name: value.replace("%", "%%") for name, value in values.items()}
    if "CPU_QUOTA" in values:
        escaped["CPU_QUOTA"] = values["CPU_QUOTA"]  # whose % is one
    return unit_path(to or template), _filled(template, escaped)


def _filled(template: str, values: Mapping[str, str]) -> File:
    lines = []
    for line in (TEMPLATES / template).read_text(encoding="utf-8").splitlines():
        alone = _PLACE.fullmatch(line)
        if not (alone and not values[alone[1]]):
            lines.append(_PLACE.sub(lambda found: values[found[1]], line))
    return File(text="\n".join(lines) + "\n")


def _credential(key: str) -> str:
    return f"{CREDENTIALS}/{CREDENTIAL_PREFIX}{key}"


def _assignment(name: str, value: str) -> str:
    return f'Environment="{name}={value}"'


def _assignments(variables: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={_quoted(name, value)}" for name, value in sorted(variables.items()))


def _quoted(name: str, value: str) -> str:
    if "\n" in value or "\0" in value:
        raise DeployError(f"{name} has several lines, which a unit's environment can not have")
    return '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'
