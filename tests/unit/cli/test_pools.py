"""`agentq pools` where systemd's part is given."""

from __future__ import annotations

from dataclasses import replace

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
        remote=remote, up_s=125.0,
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
    first = ["shared-0", "active", "0-1", "3", "of", "50", "42", "%", "90", "MB"]
    first += ["2", "min", "5", "s", "0", "jemalloc"]
    assert lines[1][: len(first)] == first
    assert [line[-1] for line in lines] == (shown or ["allocator", "jemalloc", "jemalloc"])


@pytest.mark.parametrize(
    ("state", "running", "said"),
    [
        ("active", 3, ""),
        (
            "activating",
            None,
            "not well: shared-0: activating, 7 restarts; its last line: no module\n",
        ),
        ("active", None, "not well: shared-0: active, 7 restarts; the broker does not answer\n"),
        ("active, no lease", None, "not well: shared-0: active, no lease, 7 restarts\n"),
    ],
)
def test_a_check_fails_where_a_worker_takes_no_work_and_names_it(
    state: str, running: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(process("shared-0", None), state=state, running=running, restarts=7)
    monkeypatch.setattr(systemd, "require_systemd", lambda: None)
    monkeypatch.setattr(systemd, "last_line", lambda _: "no module")
    monkeypatch.setattr(pools, "read_pools", lambda _: [one])
    done = CliRunner().invoke(app, ["pools", "--check"])
    assert (done.stderr, done.exit_code) == (said, int(bool(said)))
    assert CliRunner().invoke(app, ["pools"]).exit_code == 0


def test_builds_are_shown_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [replace(process(f"shared-{n}", None), build=f"0.{n}.0 (functions 3)") for n in (1, 2)]
    monkeypatch.setattr(systemd, "require_systemd", lambda: None)
    for shown, build in ((found, "0.1.0 (functions 3)"), (found[:1], "jemalloc")):
        monkeypatch.setattr(pools, "read_pools", lambda _, shown=shown: shown)
        assert CliRunner().invoke(app, ["pools"]).stdout.splitlines()[1].strip().endswith(build)
