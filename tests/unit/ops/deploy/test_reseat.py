"""Which new seats are refused to a process that runs."""

from __future__ import annotations

import os

import pytest

from agentq.errors import DeployError
from agentq.host.affinity import effective
from agentq.host.process import rss_bytes
from agentq.ops.deploy import reseat, systemd
from tests.unit.ops.deploy.plans import planned


@pytest.mark.parametrize(("was", "is_", "fits"), [(9, 1, False), (9, 2, True), (1, 1, True)])
def test_a_process_is_not_left_less_memory_than_it_holds(
    was: int, is_: int, *, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In multiples of what it holds; one whose limit stays is not asked."""
    unit = systemd.Unit(
        name="agentq-worker@shared-0.service", active="active", sub="running", result="success",
        pid=os.getpid(), restarts=0, memory=None, status="",
    )  # fmt: skip
    monkeypatch.setattr(systemd, "show", lambda names: [unit for _ in names])
    own = rss_bytes(os.getpid())
    old, new = ({"shared-0": planned("shared", (0,), memory_bytes=n * own)} for n in (was, is_))
    if fits:
        reseat.require_memory(old, new)
        return
    with pytest.raises(DeployError, match=r"shared-0 holds .* pools\.shared\.memory set; nothing"):
        reseat.require_memory(old, new)


def test_a_memory_limit_that_holds_at_once_for_what_runs_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = effective(pid=os.getpid())
    unit = systemd.Unit(
        name="agentq-worker@shared-0.service", active="active", sub="running", result="success",
        pid=os.getpid(), restarts=0, memory=None, status="",
    )  # fmt: skip
    monkeypatch.setattr(systemd, "show", lambda names: [unit for _ in names])
    monkeypatch.setattr(systemd, "systemctl", lambda *_: "")
    old, new = ({"shared-0": planned("shared", here, memory_bytes=size << 30)} for size in (9, 4))
    assert reseat.reseat(old, new) == ["shared-0: memory limit 9216 MB -> 4096 MB, from now on"]
    assert reseat.reseat(new, new) == []
