"""What is different on a machine where units are installed; below a folder that stands for /."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from agentq.errors import BrokerNotConfigured, BrokerUnavailable
from agentq.ops.deploy import systemd
from agentq.ops.deploy.deployment import Given, load
from agentq.ops.deploy.machine import Machine
from agentq.ops.units_here import adopt, start
from agentq.settings import installed, load_settings
from agentq.store import calls
from agentq.store.address import parse
from agentq.store.client import Store
from agentq.store.locate import broker_url
from tests.support.failover import free_port
from tests.unit.ops.deploy.plans import plan_of, planned
from tests.unit.ops.deploy.test_deployment import site
from tests.unit.ops.doctor.test_units import unit

ELSEWHERE = {"AGENTQ_BROKER__URL": "agentq://127.0.0.1:8/0"}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Install units below a folder; return variables of a shell that names no broker."""
    shop = site(tmp_path, {})
    (tmp_path / "config").mkdir()
    (tmp_path / "config/production.toml").write_text('[broker]\ncell = "west"\n')
    url = f"agentq://agentq-worker:pw@127.0.0.1:{free_port()}/0"
    given = Given(plain={"AGENTQ_ENV": "production"}, secret={"broker.url": url})
    plan = plan_of(planned("shared", (0,)))
    Machine(root=tmp_path).install(shop, load(shop, given, {}), plan, given)
    monkeypatch.setattr(installed, "ROOT", tmp_path)
    monkeypatch.chdir("/")
    return {"AGENTQ_EMBEDDED__DATA_DIR": str(tmp_path / "none")}


def test_root_finds_the_units_cell_unless_another_is_named(
    own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    named = {**own, **ELSEWHERE}
    adopt(named)
    assert named == {**own, **ELSEWHERE}
    own["AGENTQ_BROKER__URL"] = ""
    adopt(own)
    settings = load_settings(environ=own)
    assert broker_url(settings).startswith("agentq://agentq-worker:pw@127.0.0.1:")
    assert (settings.env, settings.broker.cell) == ("production", "west")


def test_others_are_told_that_root_finds_it(
    own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for more in ({}, {"AGENTQ_ENV": "production"}):
        environ = own | more
        adopt(environ)
        assert environ == own | more
        with pytest.raises(BrokerNotConfigured, match=r"units have one: as root \(sudo\)") as said:
            broker_url(load_settings(environ=environ))
        assert "agentq up" not in str(said.value)


@pytest.mark.usefixtures("own")
def test_remedies_are_systemds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start().startswith(
        "systemctl start agentq.target; journalctl -n 50 -u 'agentq-worker@*'"
    )
    assert start("gpu").startswith("agentq scale gpu=1, or"), "as after agentq scale gpu=0"
    monkeypatch.setattr(systemd, "runs_here", lambda: True)
    for active, restarts, remedy in (
        ("inactive", 0, "systemctl start agentq.target; journalctl"),
        ("activating", 0, "systemctl start agentq.target; journalctl"),
        ("activating", 3, "agentq pools --check says why it ends"),
        ("failed", 0, "agentq pools --check says why it ends"),
    ):
        found = replace(unit("shared-0", active), restarts=restarts)
        monkeypatch.setattr(systemd, "show", lambda _, found=found: [found])
        assert start("shared").startswith(remedy)
    nobody = parse(f"agentq://127.0.0.1:{free_port()}/0")
    with pytest.raises(BrokerUnavailable, match=r": systemctl status redis-server, or valkey-se"):
        Store(address=nobody, timeout=timedelta(seconds=1)).call(calls.cancel("x", "r", 1))


def test_elsewhere_they_are_agentqs_own() -> None:
    assert start("gpu") == "agentq worker --pool gpu -A module:attribute, or agentq up"
