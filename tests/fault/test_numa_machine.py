"""The units on a machine of two memory nodes and pure control groups v2: what no container here has.

`make numa KERNEL=DIR` asks for it. An emulated processor takes half a minute to start a Python, so
the story is played once (`_play`), and each test looks at a part of what was seen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.ledger import VARIABLE
from tests.support.numa_machine import NumaMachine, unsupported

REASON = unsupported()
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(REASON is not None, reason=f"no machine is emulated: {REASON}"),
]

APP = "tests.support.apps.units"
LEDGER = "/var/ledger"
MEMORY = 320 << 20
SETTINGS = {
    "AGENTQ_WORKER__SLOTS": "20",
    "AGENTQ_WORKER__DRAIN_TIMEOUT": "10s",
    "AGENTQ_WORKER__HANG_TIMEOUT": "30s",  # everything is ten times slower here
    "AGENTQ_WORKER__LEASE": "60s",
    "AGENTQ_POOLS__SHARED__PROCESSES": "1",
    "AGENTQ_POOLS__SHARED__MEMORY": str(MEMORY),
}
CELL = {"AGENTQ_BROKER__URL": "agentq+unix:///var/lib/agentq/b.sock"}
BROKER = "agentq-broker.service"
CRITICAL, SHARED = "agentq-worker@critical-0.service", "agentq-worker@shared-0.service"
UNITS = (BROKER, CRITICAL, SHARED)
RUNS = 20
SLOW = f"[Service]\nTimeoutStartSec=600\nReadWritePaths={LEDGER}\n"
FAR = ("workers.remote_memory", "broker.memory_node")
LIMITS = ("memory.high", "memory.max", "pids.max", "cpu.weight")

_RUNS = f"""
from tests.support.apps import units
runs = [units.fan.submit(3) for _ in range({RUNS})]
print([run.result(timeout=200) for run in runs])
"""
_HOG = f"""
from agentq.errors import RunFailed
from tests.support.apps import units
try:
    print(units.greedy.submit({MEMORY >> 19}).result(timeout=400))
except RunFailed as error:
    print("failed:", error)
print(units.fan.submit(3).result(timeout=200))
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the main process of a unit is, or a child that has its memory: the broker's server."""

    cores: str
    policies: set[str]
    """Of its mappings: as numa_maps has them, e.g. ``bind:1``."""
    pages: Mapping[str, int]
    """Node -> pages of its own memory."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of the story."""

    planned: str
    """As `agentq plan` prints it."""
    plan: dict[str, Any]
    """As it was installed."""
    places: Mapping[str, list[Place]]
    """Unit -> each of its processes."""
    limits: Mapping[str, Mapping[str, str]]
    """Unit or slice -> file of its control group -> what is in it."""
    busy: Mapping[str, int]
    """Pool -> CPU time, in us, of a busy process in its slice, both on one core."""
    results: str
    pools: dict[str, dict[str, Any]]
    """As `agentq pools` says, after critical worker and server were moved to a core of node 1."""
    findings: Mapping[str, dict[str, Any]]
    """As `agentq doctor` says then, by subject."""
    moved: str
    """What the remedy for interrupts on the workers' cores prints where it is typed."""
    hog: str
    events: Mapping[str, int]
    """memory.events of the shared pool's slice."""
    restarts: Mapping[str, int]
    journal: str
    stopped: set[tuple[str, str]]
    """(state, result) of the units after the target was stopped."""
    left: str


@pytest.fixture(scope="module")
def seen() -> Seen:
    machine = NumaMachine(environment={VARIABLE: LEDGER})
    _lay(machine.files)
    with machine:
        return _play(machine)


def _play(machine: NumaMachine) -> Seen:
    planned = machine.agentq("plan", "-A", f"{APP}:aq", env=SETTINGS, timeout=300)
    _install(machine)
    plan = orjson.loads(machine.read("/etc/agentq/plan.json"))
    places, limits = {unit: _places(machine, unit) for unit in UNITS}, _limits(machine)
    print(planned, *_lines(places, limits), sep="\n")
    busy = _busy(machine)
    results = machine.python("-c", _RUNS, env=CELL, timeout=400)
    pools, findings = _far_away(machine)
    moved = machine.run("sh", "-c", findings["interrupts.affinity"]["remedy"], check=False)
    hog = machine.python("-c", _HOG, env=CELL, timeout=700)
    events = machine.read(f"{_group('agentq-shared.slice')}/memory.events")
    restarts = {unit: int(machine.show(unit, "NRestarts")) for unit in UNITS}
    journal = machine.journal(lines=400)
    print(f"on one core, us: {busy}", hog, events, journal, sep="\n")
    return Seen(
        planned=planned, plan=plan, places=places, limits=limits, busy=busy, results=results,
        pools=pools, findings=findings, moved=moved, hog=hog, events=_numbers(events),
        restarts=restarts, journal=journal, stopped=_stopped(machine), left=_left(machine),
    )  # fmt: skip


def _lay(files: Path) -> None:
    """Give a slow machine's units time, and leave out the dashboard, which is not tried here."""
    for unit, text in (("worker@", SLOW), ("dashboard", "[Unit]\nConditionPathExists=/none\n")):
        drop_in = files / f"etc/systemd/system/agentq-{unit}.service.d/90-test.conf"
        drop_in.parent.mkdir(parents=True)
        drop_in.write_text(text)
    ledger = files / LEDGER.lstrip("/")
    ledger.parent.mkdir()
    ledger.touch()
    ledger.chmod(0o666)


def _install(machine: NumaMachine) -> None:
    machine.agentq("deploy", "install", "-A", f"{APP}:aq", env=SETTINGS, timeout=400)
    machine.run("systemctl", "start", "agentq.target", timeout=600)
    for unit in UNITS:
        assert machine.show(unit, "ActiveState") == "active", machine.journal()


def _places(machine: NumaMachine, unit: str) -> list[Place]:
    pids = machine.read(f"{_group_of(machine, unit)}/cgroup.procs").split()
    return [_place(machine, pid) for pid in pids]


def _place(machine: NumaMachine, pid: str) -> Place:
    status = machine.read(f"/proc/{pid}/status")
    cores = re.search(r"Cpus_allowed_list:\s(\S+)", status)
    assert cores is not None
    policies, pages = set(), Counter[str]()
    for line in machine.read(f"/proc/{pid}/numa_maps").splitlines():
        policies.add(line.split()[1])
        if " file=" not in line:
            for node, count in re.findall(r" N(\d+)=(\d+)", line):
                pages[node] += int(count)
    return Place(cores=cores[1], policies=policies, pages=pages)


def _limits(machine: NumaMachine) -> dict[str, dict[str, str]]:
    groups = {unit: _group_of(machine, unit) for unit in UNITS}
    groups |= {name: _group(f"agentq-{name}.slice") for name in ("critical", "shared")}
    found = {}
    for name, group in groups.items():
        files = " ".join(f"{group}/{file}" for file in LIMITS)
        lines = machine.run("sh", "-c", f"grep -H . {files} 2>&1", check=False).splitlines()
        pairs = [line.rsplit("/", 1)[-1].split(":", 1) for line in lines if "No such" not in line]
        found[name] = {file: text.strip() for file, text in pairs}
    return found


def _lines(
    places: Mapping[str, list[Place]], limits: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Say where each process is and what its group may use, a line each."""
    for unit, processes in places.items():
        for one in processes:
            pages = ", ".join(f"{count} pages on node {node}" for node, count in one.pages.items())
            yield f"{unit}: cores {one.cores}, {' '.join(one.policies)}, {pages}"
    for name, files in limits.items():
        yield f"{name}: {' '.join(f'{file}={text}' for file, text in files.items())}"


def _group(pool_slice: str) -> str:
    return f"/sys/fs/cgroup/agentq.slice/{pool_slice}"


def _group_of(machine: NumaMachine, unit: str) -> str:
    return f"/sys/fs/cgroup{machine.show(unit, 'ControlGroup')}"


def _busy(machine: NumaMachine) -> dict[str, int]:
    """Have both pools' slices want the idle core for five seconds."""
    endless = "while :; do :; done"
    start = (
        "systemd-run -q --unit=busy-{0} --slice=agentq-{0}-busy.slice -p CPUAffinity=3 sh -c '{1}'"
    )
    for pool in ("critical", "shared"):
        machine.run("sh", "-c", start.format(pool, endless))
    machine.run("sleep", "5")
    used = {
        pool: machine.read(f"{_group(f'agentq-{pool}.slice')}/agentq-{pool}-busy.slice/cpu.stat")
        for pool in ("critical", "shared")
    }
    machine.run("systemctl", "kill", "-s", "KILL", "busy-critical", "busy-shared")
    machine.run("systemctl", "reset-failed", "busy-*", check=False)
    return {pool: _numbers(text)["usage_usec"] for pool, text in used.items()}


def _far_away(machine: NumaMachine) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what pools and doctor say while the critical worker and the server run on node 1."""
    *_, server = machine.read(f"{_group_of(machine, BROKER)}/cgroup.procs").split()
    homes = {machine.show(CRITICAL, "MainPID"): "1", server: "0"}
    for pid in homes:
        machine.run("taskset", "-acp", "3", pid)
    pools = orjson.loads(machine.agentq("pools", "--json", timeout=300))
    words = ("doctor", "--json", "-A", f"{APP}:aq")
    said = machine.agentq(*words, env={**SETTINGS, **CELL}, timeout=300, check=False)
    for pid, home in homes.items():
        machine.run("taskset", "-acp", home, pid)
    findings = orjson.loads(said)["findings"]
    return (
        {one["instance"]: one for one in pools},
        {one["subject"]: one for one in findings},
    )


def _stopped(machine: NumaMachine) -> set[tuple[str, str]]:
    machine.run("systemctl", "stop", "agentq.target", "agentq.slice", timeout=200)
    return {(machine.show(unit, "ActiveState"), machine.show(unit, "Result")) for unit in UNITS}


def _left(machine: NumaMachine) -> str:
    """Take agentq away; return the files, units, groups and processes of it that are left."""
    own = "rm -r /etc/systemd/system/agentq-*.service.d/90-test.conf"
    machine.run("sh", "-c", own)
    machine.agentq("deploy", "uninstall", timeout=300)
    files = "find /etc /run /var /sys/fs/cgroup -xdev -name '*agentq*'"
    units = "systemctl list-units --all --no-legend 'agentq*'"
    return machine.run("sh", "-c", f"{files}; {units}; ps -u agentq -o args=", check=False)


def _numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in text.splitlines())}


def test_the_plan_puts_workers_on_both_nodes_and_says_what_the_second_pays(seen: Seen) -> None:
    rows = {line.split()[0]: line.split() for line in seen.planned.splitlines() if line}
    assert rows["critical-0"][:4] == ["critical-0", "1", "-", "0"]
    assert rows["shared-0"][:4] == ["shared-0", "2", "-", "1"]
    assert (
        "on node 1 (1) reach it across the interconnect (distance 21, local is 10)" in seen.planned
    )


def test_every_process_has_the_cores_and_the_policy_of_its_unit(seen: Seen) -> None:
    found = {unit: {(one.cores, *one.policies) for one in seen.places[unit]} for unit in UNITS}
    assert found == {
        BROKER: {("0", "bind:0")},
        CRITICAL: {("1", "bind:0")},
        SHARED: {("2", "bind:1")},
    }


def test_own_memory_is_on_the_node_of_the_cores(seen: Seen) -> None:
    for unit, node in ((BROKER, "0"), (CRITICAL, "0"), (SHARED, "1")):
        for one in seen.places[unit]:
            assert one.pages[node] > 1000
            assert set(one.pages) == {node}, unit


def test_limits_and_weights_stand_in_the_control_groups(seen: Seen) -> None:
    [critical, shared] = seen.plan["processes"]
    assert shared["memory_bytes"] == MEMORY
    for unit, planned in ((CRITICAL, critical), (SHARED, shared)):
        limits = seen.limits[unit]
        most = planned["memory_bytes"]
        whole_pages = (most - min(most // 50, 64 << 20)) // 4096 * 4096
        assert limits["memory.max"] == str(most)
        assert limits["memory.high"] == str(whole_pages)
        assert limits["pids.max"] == str(3 * planned["tasks"])
    assert seen.limits["critical"]["cpu.weight"] == "800"
    assert seen.limits["shared"]["cpu.weight"] == "100"
    assert seen.limits[BROKER]["cpu.weight"] == "1000"


def test_on_one_core_the_critical_pool_has_eight_times_as_much(seen: Seen) -> None:
    assert seen.busy["critical"] > 4 * seen.busy["shared"] > 0


def test_runs_go_through(seen: Seen) -> None:
    assert seen.results.splitlines()[-1] == str([3] * RUNS)


def test_pools_and_doctor_tell_memory_that_is_far_from_its_cores(seen: Seen) -> None:
    assert seen.pools["critical-0"]["remote"] > 0.9
    assert seen.pools["shared-0"]["remote"] < 0.1
    far = {name: seen.findings[name]["seen"] for name in FAR}
    assert re.match(r"\d+% of the memory of critical-0@\S+ .* not on node 1", far[FAR[0]])
    assert re.match(r"\d+% of the memory of the server .* not on node 1", far[FAR[1]])


def test_the_doctors_remedy_moves_interrupts_without_an_error(seen: Seen) -> None:
    assert seen.moved == ""


def test_the_memory_limit_ends_one_worker_and_not_the_pools(seen: Seen) -> None:
    assert seen.hog.splitlines()[-1] == "3", "nothing ran afterwards"
    assert "failed:" in seen.hog
    assert seen.restarts[CRITICAL] == seen.restarts[BROKER] == 0
    assert seen.restarts[SHARED] == 1, "or what ran alone ended its worker"
    assert seen.events["high"] > 0
    assert seen.events["oom_kill"] > 0
    assert re.search(r"shared-0@\S+ is gone: 1 messages .* \(signal\)", seen.journal)
    assert "(watchdog)" not in seen.journal
    assert seen.journal.count("alone in a process, its process was killed by SIGKILL") == 3


def test_stopping_the_target_ends_all_in_order_and_uninstalling_leaves_the_data(seen: Seen) -> None:
    assert seen.stopped == {("inactive", "success")}
    assert seen.left.split() == ["/var/lib/agentq"]
