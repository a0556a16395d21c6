"""What the units say, for which settings; and that systemd takes it."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentq.clock import format_duration, parse_duration
from agentq.errors import BrokerNotConfigured, DeployError
from agentq.host.plan import Broker, Plan, parse_plan
from agentq.ops.deploy.deployment import Given, Site, given_by, load
from agentq.ops.deploy.install import write_files
from agentq.ops.deploy.render import OPTIONAL, TEMPLATES, File, notes, render
from agentq.settings import load_settings
from tests.unit.ops.deploy.plans import planned

READABLE = Path(__file__).parents[4] / "deploy/systemd"
SITE = Site(app="shop.flows:aq", folder=Path("/opt/shop"), python=Path("/usr/bin/python3"))
PLAN = Plan(
    processes=(
        planned("critical", (1, 9), children=((3,),), reason="a core of its own"),
        planned("shared", (2,), node=1, memory_bytes=1 << 30, open_files=70_000, tasks=100),
    ),
    reserved=(0,), idle=(), needs=(), findings=(),
    broker=Broker(cores=(0, 8), node=0, reason="beside the interrupts"),
)  # fmt: skip
NOTHING = Given(plain={}, secret={})
ALLOCATORS = {"critical": {"MALLOC_ARENA_MAX": "2"}, "shared": {"LD_PRELOAD": "/lib/j.so"}}
WORKER = "etc/systemd/system/agentq-worker@.service"
SHARED_SEAT = "etc/systemd/system/agentq-worker@shared-0.service.d/20-seat.conf"


def rendered(given: Given = NOTHING, **overrides: Any) -> dict[str, File]:
    settings = load_settings(
        environ=given.environ,
        overrides={key.replace("__", "."): value for key, value in overrides.items()},
    )
    return render(SITE, settings, PLAN, given, ALLOCATORS)


def values(file: File, name: str) -> list[str]:
    """Return what a unit file sets *name* to, each time."""
    lines = [line.partition("=") for line in file.text.splitlines() if not line.startswith("#")]
    return [value for key, _, value in lines if key == name]


def test_the_readable_originals_are_what_is_in_the_wheel() -> None:
    assert sorted(p.name for p in READABLE.iterdir()) == sorted(p.name for p in TEMPLATES.iterdir())
    for template in TEMPLATES.iterdir():
        assert (READABLE / template.name).read_bytes() == template.read_bytes(), template.name


def test_the_same_settings_give_the_same_files_without_a_place_left_over() -> None:
    files = rendered()
    assert files == rendered()
    assert not [name for name, file in files.items() if "@}" in file.text or "@{" in file.text]


@pytest.mark.parametrize("hang", ["50ms", "1s", "10s", "2m"])
def test_the_watchdog_is_never_shorter_than_what_a_loop_may_stand_still(hang: str) -> None:
    [watchdog] = values(rendered(worker__hang_timeout=hang)[WORKER], "WatchdogSec")
    assert parse_duration(watchdog) - parse_duration(hang) == timedelta(seconds=2)


@pytest.mark.parametrize("drain", ["0s", "1500ms", "30s", "10m"])
def test_systemd_waits_longer_than_the_worker_drains(drain: str) -> None:
    [stop] = values(rendered(worker__drain_timeout=drain)[WORKER], "TimeoutStopSec")
    assert parse_duration(stop) - parse_duration(drain) == timedelta(seconds=10)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_worker_under_celerys_own_pools_is_watched_as_ours_is(pool: str) -> None:
    found = values(rendered(worker__stock_pool=pool)[WORKER], "WatchdogSec")
    assert found == values(rendered()[WORKER], "WatchdogSec") != []


def test_a_seat_has_its_cores_node_memory_quota_and_allocator() -> None:
    seat = rendered(pools__shared__cpu_quota=50, pools__shared__nice=5)[SHARED_SEAT]
    assert values(seat, "CPUAffinity") == ["", "2"]
    assert (values(seat, "NUMAPolicy"), values(seat, "NUMAMask")) == (["bind"], ["1"])
    assert values(seat, "MemoryMax") == [str(1 << 30)]
    assert values(seat, "MemoryHigh") == [str((1 << 30) - (1 << 30) // 50)]
    assert values(seat, "CPUQuota") == ["50%"]
    assert values(seat, "Nice") == ["5"]
    assert (values(seat, "LimitNOFILE"), values(seat, "TasksMax")) == (["70000"], ["300"])
    assert values(seat, "Environment") == ['"LD_PRELOAD=/lib/j.so"']
    other = rendered()["etc/systemd/system/agentq-worker@critical-0.service.d/20-seat.conf"]
    assert values(other, "CPUAffinity") == ["", "1 3 9"]
    for absent in ("NUMAPolicy", "CPUQuota", "Nice"):
        assert values(other, absent) == []


def test_the_broker_has_the_plans_cores_and_node_and_workers_read_theirs_from_it() -> None:
    files = rendered()
    broker = files["etc/systemd/system/agentq-broker.service.d/20-seat.conf"]
    assert (values(broker, "CPUAffinity"), values(broker, "NUMAMask")) == (["", "0 8"], ["0"])
    assert parse_plan(files["etc/agentq/plan.json"].text.encode()) == PLAN
    assert " --plan /etc/agentq/plan.json " in values(files[WORKER], "ExecStart")[0]


@pytest.mark.parametrize(
    ("url", "lines"),
    [
        (None, ["1"]), ("agentq+unix:///run/redis/redis.sock", ["1"]), ("agentq://127.0.0.1/0", ["1"]),
        ("agentq+tls://broker.internal/0", []), ("redis://127.0.0.1/0", []),
    ],
)  # fmt: skip
def test_the_kernel_lets_a_server_of_this_machine_fork(url: str | None, lines: list[str]) -> None:
    found = rendered(broker__url=url)["etc/sysctl.d/60-agentq.conf"]
    assert values(found, "vm.overcommit_memory ") == [f" {line}" for line in lines]
    assert values(found, "net.core.somaxconn ") == [" 4096"]


def test_critical_goes_first_and_is_ended_last() -> None:
    files = rendered()
    slices = [files[f"etc/systemd/system/agentq-{pool}.slice"] for pool in ("critical", "shared")]
    assert [values(one, "CPUWeight") for one in slices] == [["800"], ["100"]]
    seats = [files[SHARED_SEAT.replace("shared", pool)] for pool in ("critical", "shared")]
    assert [values(one, "OOMScoreAdjust") for one in seats] == [["0"], ["300"]]
    set_by_hand = rendered(pools__shared__oom_score=700)[SHARED_SEAT]
    assert values(set_by_hand, "OOMScoreAdjust") == ["700"]


def test_the_target_wants_each_service_of_the_machine() -> None:
    target = rendered()["etc/systemd/system/agentq.target"]
    assert values(target, "Wants") == [
        "agentq-broker.service", "agentq-worker@critical-0.service",
        "agentq-worker@shared-0.service",
    ]  # fmt: skip


def test_dashboard_and_metrics_are_the_targets_where_they_are_enabled_and_wanted() -> None:
    files, fewer = rendered(), rendered(metrics__unit=False, dashboard__unit=False)
    assert set(files) - set(fewer) == {
        f"etc/systemd/system/agentq-{service}.service{part}"
        for service in ("dashboard", "metrics") for part in ("", ".d/10-common.conf")
    }  # fmt: skip
    for unit in OPTIONAL:
        assert values(files[f"etc/systemd/system/{unit}"], "WantedBy") == ["agentq.target"]


WORKERS, LOOKS = "agentq://agentq-worker:w@db:6379/0", "agentq://agentq-dashboard:d@db:6379/0"


def credentials(files: dict[str, File], service: str) -> list[str]:
    unit = files[f"etc/systemd/system/agentq-{service}.service.d/10-common.conf"]
    return [one.partition(":")[0] for one in values(unit, "LoadCredential")]


def test_who_only_looks_is_not_given_the_password_of_those_who_work() -> None:
    environ = {
        "AGENTQ_BROKER__URL": WORKERS, "AGENTQ_DASHBOARD__BROKER_URL": LOOKS,
        "AGENTQ_MODEL__API_KEY": "sesame",
    }  # fmt: skip
    given = given_by(environ)
    assert "agentq-dashboard:d" not in "".join(given.plain.values())
    files = rendered(given)
    assert credentials(files, "worker@") == ["agentq.broker.url", "agentq.model.api_key"]
    for service in ("dashboard", "metrics"):
        assert credentials(files, service) == [
            "agentq.dashboard.broker_url",
            "agentq.model.api_key",
        ]
    assert notes(load_settings(environ=given.environ), given) == []


def test_where_they_have_no_password_of_their_own_it_is_said() -> None:
    given = given_by({"AGENTQ_BROKER__URL": WORKERS})
    assert credentials(rendered(given), "metrics") == ["agentq.broker.url"]
    [said] = notes(load_settings(environ=given.environ), given)
    assert said.startswith("dashboard and metrics run with the workers' broker.url")
    assert said.endswith("AGENTQ_DASHBOARD__BROKER_URL")
    none = {"AGENTQ_DASHBOARD__UNIT": "false", "AGENTQ_METRICS__UNIT": "false"}
    assert notes(load_settings(environ={**given.environ, **none}), given) == []
    assert notes(load_settings(environ={}), NOTHING) == [], "the embedded server has no users"


def test_a_broker_of_its_own_leaves_the_embedded_one_out_and_its_password_is_a_credential() -> None:
    environ = {
        "AGENTQ_BROKER__URL": "agentq://u:hunter2@db:6379/0",
        "AGENTQ_MODEL__API_KEY": "sesame",
        "AGENTQ_WORKER__SLOTS": "7",
    }
    files = rendered(given_by(environ))
    secret = {name: file for name, file in files.items() if file.mode == 0o600}
    assert {name: file.text for name, file in secret.items()} == {
        "etc/agentq/credentials/agentq.broker.url": environ["AGENTQ_BROKER__URL"],
        "etc/agentq/credentials/agentq.model.api_key": "sesame",
    }
    rest = "".join(file.text for name, file in files.items() if name not in secret)
    assert "hunter2" not in rest
    assert "sesame" not in rest
    assert 'AGENTQ_WORKER__SLOTS="7"' in files["etc/agentq/environment"].text
    assert "LoadCredential=agentq.broker.url:/etc/agentq/credentials/agentq.broker.url" in rest
    assert "agentq-broker.service" not in "".join(files) + "".join(
        values(files["etc/systemd/system/agentq.target"], "Wants")
    )


def test_production_without_a_broker_is_refused() -> None:
    with pytest.raises(BrokerNotConfigured):
        rendered(Given(plain={"AGENTQ_ENV": "production"}, secret={}))


@pytest.mark.parametrize("folder", ["/home/me/shop", "/root", "/tmp/shop", "/run/user/7"])
def test_a_folder_that_a_unit_does_not_see_is_refused_with_a_way_out(folder: str) -> None:
    site = Site(app="a:b", folder=Path(folder), python=Path("/usr/bin/python3"))
    with pytest.raises(DeployError, match=r"do not see.*--folder"):
        site.require_visible()


def test_a_python_that_is_a_link_into_a_home_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to("/root/.pyenv/bin/python3")
    with pytest.raises(DeployError, match="below /"):
        Site(app="a:b", folder=Path("/opt"), python=link).require_visible()


@pytest.mark.parametrize("folder", ["shop", "/opt/a b", "/opt/a'b"])
def test_a_path_that_can_not_stand_in_a_unit_is_refused(folder: str) -> None:
    with pytest.raises(DeployError, match="absolute path without blanks"):
        Site(app="a:b", folder=Path(folder), python=Path("/usr/bin/python3"))


def test_settings_are_read_where_the_units_read_them_not_where_the_shell_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/default.toml").write_text("[worker]\nslots = 5\n")
    monkeypatch.chdir(tmp_path)
    assert load(SITE, NOTHING, {}).worker.slots == 1000
    assert load(SITE, NOTHING, {"shared": 4}).pools["shared"].processes == 4


@pytest.fixture
def analyze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    write_files(tmp_path, rendered())
    # A colon at the end: the system's own units are there too.
    monkeypatch.setenv("SYSTEMD_UNIT_PATH", f"{tmp_path / 'etc/systemd/system'}:")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/usr/bin/systemd-analyze", *words], capture_output=True, text=True, check=False
        )

    return run


UNITS = (
    "agentq.target", "agentq-worker@shared-0.service", "agentq-worker@critical-0.service",
    "agentq-broker.service", "agentq-dashboard.service", "agentq-metrics.service",
)  # fmt: skip


def test_systemd_finds_nothing_to_complain_of(analyze: Any) -> None:
    done = analyze("verify", "--man=no", *UNITS)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS[1:])
def test_a_service_is_exposed_at_most_2_of_10(analyze: Any, unit: str) -> None:
    done = analyze("security", "--offline=yes", "--threshold=20", "--no-pager", unit)
    assert done.returncode == 0, done.stdout


def test_a_duration_is_written_as_systemd_reads_it() -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    written = [format_duration(timedelta(milliseconds=ms)) for ms in (50, 1500, 12_000, 120_000)]
    done = subprocess.run(
        ["/usr/bin/systemd-analyze", "timespan", *written],
        capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    micros = [
        line.split()[-1] for line in done.stdout.splitlines() if "s: " in line and "Î" not in line
    ]
    assert [int(one) for one in micros if one.isdecimal()] == [
        50_000,
        1_500_000,
        12_000_000,
        120_000_000,
    ]
