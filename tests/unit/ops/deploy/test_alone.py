"""One command at a time changes a machine's units."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentq.cli import deploy
from agentq.errors import DeployError
from agentq.ops.deploy.alone import alone


def test_who_comes_second_is_told_so_and_changes_nothing(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with alone(tmp_path):
        with pytest.raises(DeployError, match="another agentq deploy, scale or rollout"):
            deploy.install(app="shop:aq", root=tmp_path)
        with pytest.raises(DeployError, match="run this again when that has ended"):
            deploy.uninstall(root=tmp_path)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "etc", *before]
    with alone(tmp_path):
        pass
