"""What a rollout looks at before it stops anything, where systemd's part is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentq.errors import DeployError
from agentq.ops.deploy import systemd
from agentq.ops.deploy.deployment import Given, load
from agentq.ops.deploy.machine import Machine
from agentq.ops.deploy.rollout import rollout
from agentq.store.client import Store
from tests.support.failover import free_port
from tests.unit.ops.deploy.plans import plan_of, planned
from tests.unit.ops.deploy.test_deployment import site
from tests.unit.ops.doctor.test_units import unit


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return one whose workers run and must not be touched; its broker is away."""
    shop, machine = site(tmp_path, {}), Machine(root=tmp_path)
    given = Given(plain={}, secret={"broker.url": f"agentq://127.0.0.1:{free_port()}/0"})
    machine.install(shop, load(shop, given, {}), plan_of(planned("shared", (0,))), given)
    monkeypatch.setattr(systemd, "running_workers", lambda: {"shared-0"})
    monkeypatch.setattr(systemd, "systemctl", lambda *_, **__: pytest.fail("a worker was touched"))
    return machine


def test_a_broker_that_is_away_stops_no_worker(machine: Machine) -> None:
    with pytest.raises(DeployError, match="nothing was restarted: nothing listens at agentq://127"):
        rollout(machine, (), say=print)


def test_a_build_that_can_not_be_imported_stops_no_worker(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "ensure_functions", lambda _: None)
    with (machine.root / "shop.py").open("a") as code:
        code.write("import no_such")
    with pytest.raises(
        DeployError, match=r"nothing was restarted: .*'no_such' \(shop.py, line \d\)"
    ):
        rollout(machine, (), say=print)


def test_one_that_is_not_well_is_said_with_what_its_pool_has_left_and_the_way_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def restart(*_: str, **__: object) -> str:
        raise DeployError(
            "systemctl: Job for agentq-worker@shared-0.service failed.\nSee journalctl"
        )

    machine.install(
        machine.require().site,
        machine.settings(),
        plan_of(planned("shared", (0,)), replace(planned("shared", (1,)), index=1)),
        machine.given(),
    )
    monkeypatch.setattr(Store, "ensure_functions", lambda _: None)
    monkeypatch.setattr(systemd, "systemctl", restart)
    monkeypatch.setattr(systemd, "last_line", lambda *_, **__: "no such wind")
    before = [replace(unit("shared-0", "activating"), pid=0)]
    after = [unit("shared-0", "active"), unit("shared-1", "active")]  # the first has no lease
    monkeypatch.setattr(systemd, "show", lambda names: after if len(names) > 1 else before)
    with pytest.raises(DeployError) as stopped:
        rollout(machine, (), say=print)
    what, left, way = str(stopped.value).splitlines()
    assert what == (
        "shared-0 is not well after its restart: systemctl: Job for agentq-worker@shared-0.service "
        "failed; its last line: no such wind; rolled out: 0 of 2, left as they were: shared-1; "
        "see journalctl -u agentq-worker@shared-0.service"
    )
    assert left == "pool shared has 1 of 2 workers now"
    assert "agentq deploy install --folder FOLDER --python PYTHON of the build before &&" in way
    assert capsys.readouterr().out == "shared-0: activating, nothing to drain: started\n"
