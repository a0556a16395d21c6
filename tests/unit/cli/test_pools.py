"""`agentq pools` where systemd's part is given."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from agentq.cli.main import app
from agentq.ops.deploy import pools, systemd
from agentq.ops.deploy.pools import Process


def process(instance: str, remote: float | None) -> Process:
    return Process(
        instance=instance, pool="shared", state="active", pid=7, cores=(0, 1), planned=(0, 1),
        running=3, slots=50,
        cpu_percent=41.6, memory=90 << 20, restarts=0, allocator="jemalloc", status="",
        remote=remote,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("remote", "shown"), [((None, None), []), ((0.114, None), ["remote", "11%", "-"])]
)
def test_the_share_of_remote_memory_is_shown_where_there_are_several_nodes(
    remote: tuple[float | None, ...], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [process(f"shared-{number}", share) for number, share in enumerate(remote)]
    monkeypatch.setattr(systemd, "require_systemd", lambda: None)
    monkeypatch.setattr(pools, "read_pools", lambda _: found)
    lines = [line.split() for line in CliRunner().invoke(app, ["pools"]).stdout.splitlines()]
    first = ["shared-0", "active", "0-1", "3", "of", "50", "42", "%", "90", "MB", "0", "jemalloc"]
    assert lines[1][: len(first)] == first
    assert [line[-1] for line in lines] == (shown or ["allocator", "jemalloc", "jemalloc"])
