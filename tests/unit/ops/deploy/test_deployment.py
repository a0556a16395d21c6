"""What is refused before anything is written; and what the app's code sets is in the units."""

from __future__ import annotations

import os
import pwd
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from agentq.errors import DeployError
from agentq.host.machine import read_machine
from agentq.ops.deploy.deployment import Given, Site, load, plan_at, with_code
from agentq.ops.deploy.machine import render_all

SITE = Site(app="shop:aq", folder=Path("/"), python=Path("/bin/echo"))


@pytest.mark.parametrize(
    ("site", "says"),
    [
        (SITE, "what it prints is none .*: -P -m agentq plan --json -A shop:aq"),
        (replace(SITE, python=Path("/nowhere/python")), "/nowhere/python: No such file"),
        (replace(SITE, folder=Path("/nowhere")), "in /nowhere: /nowhere: No such file"),
        (replace(SITE, python=Path("/bin/false")), "has no plan of shop:aq"),
    ],
)
def test_who_makes_no_plan_is_named_with_what_was_said(site: Site, says: str) -> None:
    with pytest.raises(DeployError, match=says):
        plan_at(site, Given(plain={}, secret={}), {})


@pytest.mark.parametrize("user", ["", "a b", "root\nExecStart=/bin/sh", "-x", "%i"])
def test_a_user_that_no_system_has_is_refused(user: str) -> None:
    with pytest.raises(DeployError, match="units need a name"):
        replace(SITE, user=user)


ASKED = Given(
    plain={"AGENTQ_WORKER__SLOTS": "7", "AGENTQ_POOLS__SHARED__PROCESSES": "2"}, secret={}
)


def site(folder: Path, code: dict[str, Any]) -> Site:
    """Return where an app is that sets *code*."""
    text = f"from agentq import AgentQ\n\naq = AgentQ('shop', overrides={code!r})\n"
    (folder / "shop.py").write_text(text)
    return Site(app="shop:aq", folder=folder, python=Path(sys.executable))


def test_the_units_are_those_of_the_settings_that_the_code_makes(tmp_path: Path) -> None:
    cores = read_machine().topology.allowed[:1]
    shop = site(tmp_path, {
        "worker.slots": 50, "worker.drain_timeout": "90s", "worker.stock_pool": None,
        "pools.gpu.purpose": "exclusive", "pools.gpu.processes": 1, "pools.gpu.cpus": list(cores), "metrics.unit": False,
        "worker.events": False,
    })  # fmt: skip
    given = with_code(shop, ASKED)
    settings = load(shop, given, {})
    assert (settings.worker.slots, settings.pools["shared"].processes) == (50, 2)
    assert (settings.pools["gpu"].purpose, settings.pools["gpu"].cpus) == ("exclusive", cores)
    with pytest.raises(DeployError, match=r"pools.gpu.processes is 1 in the code of shop:aq"):
        plan_at(shop, given, {"gpu": 2, "shared": 3})
    plan = plan_at(shop, given, {"shared": 3})
    files = render_all(shop, settings, plan, given)
    unit = files["etc/systemd/system/agentq-worker@.service"].text
    assert "\nTimeoutStopSec=100s\n" in unit or "\nTimeoutStopSec=1m40s\n" in unit
    assert "etc/systemd/system/agentq-worker@gpu-0.service.d/20-seat.conf" in files
    assert "etc/systemd/system/agentq-metrics.service" not in files
    assert 'WORKER__SLOTS="50"' in files["etc/agentq/code"].text
    assert 'WORKER__SLOTS="7"' in files["etc/agentq/environment"].text


def test_the_units_read_a_project_that_has_one_environments_file_alone(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/production.toml").write_text("[worker]\nslots = 200\n")
    given = Given(plain={"AGENTQ_ENV": "production"}, secret={})
    assert load(replace(SITE, folder=tmp_path), given, {}).worker.slots == 200


def test_a_password_in_the_code_is_refused_with_a_way_out(tmp_path: Path) -> None:
    shop = site(tmp_path, {"broker.url": "agentq://u:hunter2@db:6379/0"})
    with pytest.raises(
        DeployError, match=r"broker.url: set in the code .* AGENTQ_BROKER__URL"
    ) as e:
        with_code(shop, ASKED)
    assert "hunter2" not in str(e.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="who may be another user is root")
def test_root_tries_the_app_as_the_units_user_would_have_it() -> None:
    with TemporaryDirectory() as folder:  # tmp_path is root's alone
        python = Path(folder, "python")
        python.write_text("#!/bin/sh\necho $(id -un) $(id -Gn) $HOME of $LOGNAME\n")
        python.chmod(0o755)
        shop = Site(app="shop:aq", folder=Path("/"), python=python, user="nobody")
        with pytest.raises(DeployError, match=r"in /, as user nobody: .*: Permission denied"):
            with_code(shop, ASKED, as_user=True)
        Path(folder).chmod(0o755)
        home = pwd.getpwnam("nobody").pw_dir
        with pytest.raises(DeployError, match=rf": nobody \w+ {home} of nobody$"):
            with_code(shop, ASKED, as_user=True)
        with pytest.raises(DeployError, match=": root "):
            with_code(replace(shop, user="no-such"), ASKED, as_user=True)
