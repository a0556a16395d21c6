"""What a rollout looks at before it stops anything, where systemd's part is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentq.errors import DeployError
from agentq.ops.deploy import systemd
from agentq.ops.deploy.deployment import Given, load
from agentq.ops.deploy.machine import Machine
from agentq.ops.deploy.rollout import rollout
from tests.support.failover import free_port
from tests.unit.ops.deploy.plans import plan_of, planned
from tests.unit.ops.deploy.test_deployment import site


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", r"nothing was restarted: nothing listens at agentq://127"),
        ("import no_such", r"nothing was restarted: .*'no_such' \(shop.py, line \d\)"),
    ],
)
def test_a_build_that_can_not_start_and_a_broker_that_is_away_stop_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    shop, machine = site(tmp_path, {}), Machine(root=tmp_path)
    given = Given(plain={}, secret={"broker.url": f"agentq://127.0.0.1:{free_port()}/0"})
    machine.install(shop, load(shop, given, {}), plan_of(planned("shared", (0,))), given)
    with (tmp_path / "shop.py").open("a") as code:
        code.write(line)
    monkeypatch.setattr(systemd, "running_workers", lambda: {"shared-0"})
    monkeypatch.setattr(systemd, "systemctl", lambda *_, **__: pytest.fail("a worker was touched"))
    with pytest.raises(DeployError, match=says):
        rollout(machine, (), say=print)
