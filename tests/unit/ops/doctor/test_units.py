"""Worker units beside the plan, where systemd's part is given."""

from __future__ import annotations

import pytest

from agentq.ops.deploy.systemd import Unit
from agentq.ops.doctor.units import beside_plan


def unit(instance: str, active: str) -> Unit:
    return Unit(
        name=f"agentq-worker@{instance}.service", active=active, sub="", result="success", pid=7,
        restarts=3, memory=None, status="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("instance", "active", "seen"),
    [
        ("shared-0", "active", []),
        ("shared-0", "activating", ["error: shared-0 is in the plan of this machine and activ"]),
        ("shared-0", "failed", ["error: shared-0 is in the plan of this machine and failed, af"]),
        ("gpu-big-1", "active", ["warning: gpu-big-1 runs and is not in the plan of this machine"]),
        ("gpu-big-1", "inactive", []),
    ],
)
def test_what_runs_without_a_seat_and_a_seat_without_a_worker_are_found(
    instance: str, active: str, seen: list[str]
) -> None:
    found = list(beside_plan([unit(instance, active)], ["shared-0"]))
    assert [f"{one.severity}: {one.seen}"[: len(seen[0])] for one in found] == seen
    assert all("rollout gpu-big " in f.remedy or "journalctl" in f.remedy for f in found)
