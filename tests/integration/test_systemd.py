"""The rendered units at work under a real systemd: started, scaled, killed, hung, rolled out."""

from __future__ import annotations

import importlib
import os
import re
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from types import ModuleType
from typing import Any

import orjson
import pytest

from agentq.errors import RunFailed
from agentq.host.topology import parse_cores
from tests.support.ledger import VARIABLE, Ledger
from tests.support.redis_server import PROGRAM
from tests.support.systemd_machine import SystemdMachine, unsupported
from tests.support.waiting import wait_until

REASON = unsupported()
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(REASON is not None, reason=f"no systemd can be booted here: {REASON}"),
]

APP = "tests.support.apps.units"
MEMORY = 320 << 20
SETTINGS = {
    "AGENTQ_WORKER__SLOTS": "20",
    "AGENTQ_WORKER__DRAIN_TIMEOUT": "5s",
    "AGENTQ_POOLS__SHARED__PROCESSES": "2",
    "AGENTQ_POOLS__SHARED__MEMORY": str(MEMORY),
    "AGENTQ_POOLS__CRITICAL__MEMORY": str(MEMORY),
}
WORKER = "agentq-worker@.service"
if PROGRAM is not None:
    SETTINGS["AGENTQ_EMBEDDED__SERVER"] = str(PROGRAM)
AS_CREDENTIAL = (
    "UnsetEnvironment=AGENTQ_BROKER__URL\nLoadCredential=agentq.broker.url:/etc/broker.url\n"
)
"""The embedded broker's URL as that of any other one comes to a worker: ExecStopPost= has it not."""
CRITICAL, SHARED = "agentq-worker@critical-0.service", "agentq-worker@shared-0.service"
OTHER, ADDED = "agentq-worker@shared-1.service", "agentq-worker@shared-2.service"
LOOKERS = ("agentq-dashboard.service", "agentq-metrics.service")
WAIT = 60
NO_LEASE_RAN_OUT_S = 9
"""One that was renewed within the last third of its 15 s lasts 10 s at least."""


class Installed:
    """A machine with agentq's units, and the app as a producer here sees it."""

    def __init__(self, machine: SystemdMachine, ledger: Ledger) -> None:
        self.machine = machine
        self.ledger = ledger
        socket = machine.outside("/var/lib/agentq/b.sock")
        os.environ["AGENTQ_BROKER__URL"] = f"agentq+unix://{socket}"
        self.app: ModuleType = importlib.import_module(APP)
        importlib.reload(self.app)
        self.at_start = self.workers()

    def workers(self) -> set[str]:
        """Return whose leases the cell knows."""
        store = self.app.aq.store
        leases = [one.decode() for one in store.command("ZRANGE", store.keys.workers(), 0, -1)]
        return {lease.partition("@")[0] for lease in leases if "#" in lease}

    def workers_of(self, step: str) -> set[str]:
        """Return which processes ran a step, by its notes."""
        lines = self.ledger.lines(f"{step} ")
        return {re.findall(r" (\S+-\d+)@", line)[0] for line in lines}

    def restarts(self, unit: str) -> int:
        return int(self.machine.show(unit, "NRestarts"))

    def pid(self, unit: str) -> str:
        return self.machine.show(unit, "MainPID")

    def places(self) -> dict[str, tuple[list[int], list[int]]]:
        """Return where each process and its threads run, by name, and where it is planned to."""
        shown = [one for one in orjson.loads(self.machine.agentq("pools", "--json")) if one["pid"]]
        for one in shown:
            for thread in self.machine.outside(f"/proc/{one['pid']}/task").iterdir():
                listed = (thread / "status").read_text().partition("Cpus_allowed_list:")[2]
                assert list(parse_cores(listed.split()[0])) == one["cores"]
        return {one["instance"]: (one["cores"], one["planned"]) for one in shown}

    def await_restart(self, unit: str, before: int, within: float) -> float:
        """Return after how many seconds a unit that had *before* restarts is up again."""
        began = time.monotonic()
        wait_until(
            lambda: (
                self.restarts(unit) > before and self.machine.show(unit, "ActiveState") == "active"
            ),
            lambda: f"{unit} restarted\n{self.machine.journal(unit)}",
            within,
        )
        return time.monotonic() - began

    def await_line(self, beginning: str, count: int = 1, within: float = 30) -> list[str]:
        def there() -> list[str]:
            lines = self.ledger.lines(beginning)
            return lines if len(lines) >= count else []

        return wait_until(there, lambda: f"{beginning!r}\n{self.machine.journal()}", within)

    @contextmanager
    def load(self, width: int = 4) -> Iterator[None]:
        """Submit runs while the block lasts; each of their steps runs once, and all end well."""
        runs: list[Any] = []
        over = Event()

        def submit() -> None:
            while not over.wait(0.1):
                runs.append(self.app.fan.submit(width))

        with ThreadPoolExecutor(1) as pool:
            submitting = pool.submit(submit)
            try:
                self.await_line("member")
                yield
            finally:
                over.set()
            submitting.result()
        assert [run.result(timeout=WAIT) for run in runs] == [sum(range(width))] * len(runs)
        begun = self.ledger.counts("member ")
        expected = {f"member {run.id} {number}" for run in runs for number in range(width)}
        seen = [line.rsplit(" ", 2) for line in begun.elements()]
        assert sorted(head for head, _, _ in seen) == sorted(expected), "lost, or run twice"
        assert {attempt for _, _, attempt in seen} == {"1"}, "retried"
        print(f"{len(runs)} runs, {len(seen)} steps meanwhile: none lost, none retried")


@contextmanager
def booted() -> Iterator[tuple[SystemdMachine, Ledger]]:
    machine = SystemdMachine(environment={VARIABLE: "/shared/ledger"})
    ledger = Ledger(machine.shared / "ledger")
    ledger.path.chmod(0o666)
    with machine:
        yield machine, ledger


@pytest.fixture(scope="module")
def running() -> Iterator[Installed]:
    """One machine for the module, started; each test leaves it as it was."""
    before = dict(os.environ)
    try:
        with booted() as (machine, ledger):
            own = machine.outside(f"/etc/systemd/system/{WORKER}.d/90-test.conf")
            own.parent.mkdir()
            own.write_text(f"[Service]\nReadWritePaths=/shared\n{AS_CREDENTIAL}")
            # Not below /etc/agentq: `deploy` would take it for what is installed.
            secret = machine.outside("/etc/broker.url")
            secret.write_text("agentq+unix:///var/lib/agentq/b.sock")
            secret.chmod(0o600)
            machine.agentq("deploy", "install", "-A", f"{APP}:aq", env=SETTINGS)
            began = time.monotonic()
            machine.run("systemctl", "start", "agentq.target")
            print(f"started in {time.monotonic() - began:.1f} s")
            os.environ[VARIABLE] = str(ledger.path)
            yield Installed(machine, ledger)
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def units(running: Installed) -> Installed:
    running.ledger.clear()
    return running


def test_starting_the_target_returns_when_every_worker_takes_work(units: Installed) -> None:
    assert units.at_start == {"critical-0", "shared-0", "shared-1"}


def test_what_the_units_say_is_what_the_kernel_does(units: Installed) -> None:
    machine = units.machine
    pid = units.pid(SHARED)
    process = machine.outside(f"/proc/{pid}")
    status = (process / "status").read_text()
    allowed = re.search(r"Cpus_allowed_list:\s(\S+)", status)
    assert allowed is not None
    assert allowed[1] == machine.show(SHARED, "CPUAffinity")
    assert re.search(r"NoNewPrivs:\s1\n", status)
    assert re.search(r"CapEff:\s0+\n", status)
    assert re.search(r"Seccomp:\s2\n", status)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"Max open files {min(hard, 65536)}" in " ".join(
        (process / "limits").read_text().split()
    )
    assert (process / "oom_score_adj").read_text() == "300\n"
    assert machine.show(SHARED, "WatchdogUSec") == "12s"
    assert machine.show(SHARED, "TimeoutStopUSec") == "15s"
    own = machine.show(SHARED, "ControlGroup")
    assert own.startswith("/agentq.slice/agentq-shared.slice/agentq-shared-0.slice/")
    weight = {pool: _cpu_weight(machine, pool) for pool in ("critical", "shared")}
    assert weight["critical"] == 8 * weight["shared"]
    assert _memory_limit(machine, own) == MEMORY


def test_a_workers_copy_of_its_credential_is_its_own(units: Installed) -> None:
    copy = units.machine.outside("/run/agentq/shared-0/agentq.broker.url")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    for unit in LOOKERS:
        seen = units.machine.outside(f"/proc/{units.pid(unit)}/root/run/agentq")
        assert list(seen.iterdir()) == []


def _cpu_weight(machine: SystemdMachine, pool: str) -> int:
    path = f"agentq.slice/agentq-{pool}.slice"
    for file in (f"cpu/{path}/cpu.shares", f"{path}/cpu.weight"):
        found = machine.outside(f"/sys/fs/cgroup/{file}")
        if found.exists():
            return int(found.read_text())
    pytest.skip("no cpu controller")


def _memory_limit(machine: SystemdMachine, own: str) -> int:
    for file in (f"memory{own}/memory.limit_in_bytes", f"{own.lstrip('/')}/memory.max"):
        found = machine.outside(f"/sys/fs/cgroup/{file}")
        if found.exists():
            return int(found.read_text())
    pytest.skip("no memory controller")


def test_two_hundred_runs_go_through(units: Installed) -> None:
    runs = [units.app.fan.submit(3) for _ in range(200)]
    assert [run.result(timeout=WAIT) for run in runs] == [3] * 200


def test_scaling_under_load_loses_and_repeats_nothing_and_no_core_is_shared_for_longer(
    units: Installed,
) -> None:
    before = units.pid(SHARED)
    with units.load():
        print(units.machine.agentq("scale", "shared=3"))
        wait_until(lambda: "shared-2" in units.workers_of("member"), "a step on the added one", 30)
        said = [units.machine.agentq("scale", "shared=2", "critical=0")]
        assert units.machine.show(CRITICAL, "ActiveState") == "inactive"
        # What a scale that was cut off has left behind, the same again completes.
        units.machine.run("systemctl", "stop", OTHER)
        units.machine.run("systemctl", "start", "agentq-worker@shared-2.service")
        again = units.machine.agentq("scale", "shared=2", "critical=0")
        assert "shared-2: drained and stopped" in again, again
        assert units.machine.show(OTHER, "ActiveState") == "active"
        places = [units.places()]
        said.append(units.machine.agentq("scale", "critical=1"))
        places.append(units.places())
    print(*said)
    assert all(cores == planned for one in places for cores, planned in one.values()), said
    assert places[1]["critical-0"] != places[1]["shared-0"]
    if places[0]["shared-0"] != places[1]["shared-0"]:  # there is little room here
        assert all("shared-0: now on cores" in one for one in said)
    assert units.pid(SHARED) == before, "moved, not restarted"
    assert units.workers_of("member") == {"shared-0", "shared-1", "shared-2"}


def test_a_killed_worker_is_back_and_its_step_starts_elsewhere_at_once(units: Installed) -> None:
    run = units.app.held.submit(300)
    [line] = units.await_line("hold")
    unit = f"agentq-worker@{line.split()[2].partition('@')[0]}.service"
    before = units.restarts(unit)
    began = time.monotonic()
    units.machine.run("systemctl", "kill", "--kill-who=main", "-s", "KILL", unit)
    units.await_line("hold", 2, within=NO_LEASE_RAN_OUT_S)
    again = time.monotonic() - began
    assert re.search(r"is gone: \d messages .* \(signal\)", units.machine.journal(unit, 300))
    took = units.await_restart(unit, before, within=30)
    assert run.result(timeout=WAIT) == 2
    print(f"SIGKILL: its step started again after {again:.2f} s, the worker was back {took:.1f} s")


def test_one_that_stands_still_one_that_is_stopped_and_one_that_leaves_are_started_again(
    units: Installed,
) -> None:
    """The third leaves by itself, short of memory, and can not wait for what makes it so."""
    before = {unit: units.restarts(unit) for unit in (CRITICAL, SHARED, OTHER)}
    leaves = units.app.swelling.submit((MEMORY >> 20) * 975 // 1000)
    run = units.app.seized.submit(300)
    [line] = units.await_line("seize")
    still = f"agentq-worker@{line.split()[2].partition('@')[0]}.service"
    [stopped] = {SHARED, OTHER} - {still}
    units.machine.run("systemctl", "kill", "--kill-who=main", "-s", "STOP", stopped)
    took = max(units.await_restart(unit, before[unit], within=60) for unit in (still, stopped))
    assert run.result(timeout=WAIT) == 2
    for unit in (still, stopped):
        assert re.search(r"is gone: \d messages .* \(watchdog\)", units.machine.journal(unit, 300))
    assert re.search(r"units.py.* in seize", units.machine.journal(still, 300)), "where it stood"
    assert leaves.result(timeout=WAIT) == 2
    assert units.restarts(CRITICAL) == before[CRITICAL] + 1, "once"
    said = units.machine.journal(CRITICAL, 300)
    assert re.search(r"draining, to be started.* is gone: 1 .*\(success\)", said, re.DOTALL)
    assert "charged" not in said
    assert units.machine.show(CRITICAL, "StartLimitIntervalUSec") == "0"
    pids = {line.split()[3] for line in units.ledger.lines("swell")}
    assert len(pids | {units.pid(CRITICAL)}) == 3, "it ran alone in a process"
    print(f"hung: both were back after {took:.1f} s")


def test_the_memory_limit_ends_one_worker_and_not_its_pool(units: Installed) -> None:
    assert _memory_limit(units.machine, units.machine.show(SHARED, "ControlGroup")) == MEMORY
    before = {unit: units.restarts(unit) for unit in (CRITICAL, SHARED, OTHER)}
    run = units.app.greedy.submit(MEMORY >> 19)
    with pytest.raises(RunFailed):
        run.result(timeout=WAIT)
    first = units.ledger.lines("hog")[0].split()[2].partition("@")[0]
    hit = f"agentq-worker@{first}.service"
    units.await_restart(hit, before[hit], within=30)
    after = {unit: units.restarts(unit) for unit in before}
    assert after == before | {hit: before[hit] + 1}
    assert units.app.fan.submit(8).result(timeout=WAIT) == 28


def test_critical_steps_start_beside_a_flood_of_shared_work(units: Installed) -> None:
    flood = [units.app.fan.submit(100) for _ in range(6)]
    units.await_line("member", 30)
    first = [units.app.first.submit(number) for number in range(100)]
    assert [run.result(timeout=WAIT) for run in first] == list(range(100))
    assert len(units.ledger.lines("ended")) < 600, "the flood was over before"
    assert [run.result(timeout=WAIT) for run in flood] == [4950] * 6
    for step in ("urgent", "plan", "body"):
        assert units.workers_of(step) == {"critical-0"}
    assert units.workers_of("member") == {"shared-0", "shared-1"}


def test_a_rollout_under_load_fails_no_run_and_ends_what_the_plan_no_longer_has(
    units: Installed,
) -> None:
    """A scale lasts until the next installation; its limits hold for as long as what it added runs."""
    assert "at agentq+unix:///var/lib/agentq/b.sock" in units.machine.agentq("status"), "as root"
    assert "shared: 2 -> 3\n" in units.machine.agentq("scale", "shared=3")
    limit = units.machine.show(ADDED, "MemoryMax")
    installed = units.machine.agentq("deploy", "install")
    assert "note: what runs is as it was until agentq rollout" in installed
    assert "ends shared-2: not in the plan any more" in installed
    assert units.machine.show(ADDED, "MemoryMax") == limit
    checked = units.machine.agentq("pools", "--check", check=False)
    assert "not well: shared-2: active, not in the plan, 0 restarts" in checked
    before = {unit: units.pid(unit) for unit in (CRITICAL, SHARED, OTHER)}
    with units.load():
        said = units.machine.agentq("rollout")
    print(said)
    assert "shared-2: drained and stopped\nagentq-dashboard.service, agentq-metrics" in said
    assert units.machine.show(ADDED, "ActiveState") == "inactive"
    assert not units.machine.outside(f"/etc/systemd/system/{ADDED}.d/20-seat.conf").exists()
    assert re.findall(r"^(\S+): restarted and well", said, re.MULTILINE) == [
        "shared-0", "shared-1", "critical-0",
    ]  # fmt: skip
    assert all(units.pid(unit) != pid for unit, pid in before.items())


def test_a_rollout_stops_at_the_first_that_is_not_well(units: Installed) -> None:
    broken = units.machine.outside(f"/etc/systemd/system/{SHARED}.d/90.conf")
    # It says that it is ready and is not: it ends, and holds no lease before.
    liar = "/bin/sh -c 'systemd-notify --ready && sleep 1; seq 30; echo no such wind'"
    broken.write_text(f"[Service]\nNotifyAccess=all\nExecStart=\nExecStart={liar}\n")
    before = units.pid(CRITICAL)
    try:
        units.machine.run("systemctl", "daemon-reload")
        said = units.machine.agentq("rollout", check=False)
    finally:
        broken.unlink()
        units.machine.run("systemctl", "daemon-reload")
        units.machine.run("systemctl", "restart", SHARED)
    assert "shared-0 is not well after its restart" in said
    assert "its last line: no such wind; rolled out: 0 of 3, left as they were: shared-1," in said
    assert units.pid(CRITICAL) == before


def test_pools_shows_each_unit_with_what_it_does(units: Installed) -> None:
    run = units.app.held.submit(300)
    units.await_line("hold")

    def one_runs() -> dict[str, Any] | None:
        found = orjson.loads(units.machine.agentq("pools", "--json"))
        shown = {one["instance"]: one for one in found}
        told = [(one["running"], one["slots"]) for one in found]
        return shown if sorted(told) == [(0, 20), (0, 20), (1, 20)] else None

    shown = wait_until(one_runs, "reports that are newer than the step", 20)
    assert sorted(shown) == ["critical-0", "shared-0", "shared-1"]
    assert {one["state"] for one in shown.values()} == {"active"}
    assert shown["shared-0"]["memory"] > 1 << 20
    assert shown["shared-0"]["pid"] == int(units.pid(SHARED))
    assert all(one["cores"] == one["planned"] for one in shown.values())
    assert all(0 < one["up_s"] < 300 for one in shown.values())
    run.cancel()


def test_stopping_the_target_lets_running_steps_end(units: Installed) -> None:
    run = units.app.held.submit(3)
    units.await_line("hold")
    services = (CRITICAL, SHARED, OTHER, "agentq-broker.service", *LOOKERS)
    units.machine.run("systemctl", "start", *services)  # a rollout waits for no looker
    assert {units.machine.show(unit, "ActiveState") for unit in services} == {"active"}
    began = time.monotonic()
    units.machine.run("systemctl", "stop", "agentq.target")

    def ended() -> bool:
        return all(units.machine.show(unit, "ActiveState") == "inactive" for unit in services)

    wait_until(ended, lambda: f"all ended\n{units.machine.journal()}", 30)
    took = time.monotonic() - began
    assert {units.machine.show(unit, "Result") for unit in services} == {"success"}
    units.machine.run("systemctl", "start", "agentq.target")
    assert run.result(timeout=WAIT) == 1
    print(f"drained and stopped in {took:.1f} s")


def test_uninstalling_leaves_nothing_but_the_data() -> None:
    with booted() as (machine, _):
        machine.agentq("deploy", "install", "-A", f"{APP}:aq")
        assert {machine.show(unit, "UnitFileState") for unit in LOOKERS} == {"enabled"}
        machine.run("systemctl", "disable", "agentq-metrics")
        assert machine.run("cat", "/proc/sys/net/ipv4/tcp_tw_reuse") == "1\n"
        machine.run("systemctl", "start", "agentq-broker", SHARED)
        other = {"AGENTQ_DASHBOARD__UNIT": "false", "AGENTQ_POOLS__CRITICAL__PROCESSES": "0"}
        other["AGENTQ_POOLS__SHARED__PROCESSES"] = "2"
        said = machine.agentq("deploy", "install", "--from-shell", env=other)
        assert "note: changed: AGENTQ_DASHBOARD__UNIT: nothing -> false\n" in said
        assert len(os.sched_getaffinity(0)) != 2 or "note: shared-0: now on cores 0" in said, said
        assert [machine.show(unit, "UnitFileState") for unit in LOOKERS] == ["", "disabled"]
        print(machine.agentq("deploy", "uninstall"))
        found = "find /etc /run /usr/lib /var -xdev -name '*agentq*' -not -path '*/site-packages/*'"
        assert machine.run("sh", "-c", found).split() == ["/var/lib/agentq"]
        assert machine.run("systemctl", "list-units", "--all", "--no-legend", "agentq*") == ""
        assert machine.run("ps", "-u", "agentq", "-o", "args=", check=False) == ""
