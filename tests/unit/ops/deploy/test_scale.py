"""Which pools may be scaled, where systemd's part is given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentq.errors import DeployError
from agentq.ops.deploy import scale, systemd
from agentq.ops.deploy.deployment import Given, load
from agentq.ops.deploy.machine import Machine
from tests.unit.ops.deploy.plans import plan_of, planned
from tests.unit.ops.deploy.test_deployment import site

NOTHING = Given(plain={}, secret={})


def test_a_pool_that_the_settings_no_longer_have_can_be_scaled_to_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, machine = site(tmp_path, {}), Machine(root=tmp_path)
    plan = plan_of(planned("critical", (0,)), planned("shared", (1,)))
    machine.install(shop, load(shop, NOTHING, {}), plan, NOTHING)
    asked: list[tuple[str, ...]] = []

    def noted(*words: str, **_: object) -> str:
        asked.append(words)
        return ""

    monkeypatch.setattr(systemd, "running_workers", lambda: {"gpu-0", "gpu-1", "shared-0"})
    monkeypatch.setattr(systemd, "systemctl", noted)
    monkeypatch.setattr(systemd, "show", lambda _: [])
    for wanted in ({"gpu": 1}, {"tpu": 0}):
        with pytest.raises(DeployError, match="there is no pool"):
            scale.scale(machine, wanted, say=sys.stdout.write)
    assert asked == []
    scale.scale(machine, {"gpu": 0}, say=sys.stdout.write)
    assert asked == [
        ("stop", "agentq-worker@gpu-0.service", "agentq-worker@gpu-1.service"), ("daemon-reload",)
    ]  # fmt: skip


def test_a_pool_that_is_left_without_a_process_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, machine = site(tmp_path, {}), Machine(root=tmp_path)
    plan = plan_of(planned("shared", (1,)))
    machine.install(shop, load(shop, NOTHING, {}), plan, NOTHING)
    monkeypatch.setattr(systemd, "running_workers", lambda: {"shared-0"})
    monkeypatch.setattr(systemd, "systemctl", lambda *_, **__: "")
    monkeypatch.setattr(systemd, "show", lambda _: [])
    monkeypatch.setattr(scale, "plan_at", lambda *_: plan_of())
    scale.scale(machine, {"shared": 0}, say=print)
    said = capsys.readouterr().out
    assert said.startswith(
        "shared: 1 -> 0\nshared: nobody takes its work on this machine then: it waits"
    )
