"""`agentq tune` on a real server and real workers, and on real kernel settings."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentq.ops.tune.trial import Trial
from tests.support.command_line import Home, RunningCommand, home
from tests.support.redis_server import PROGRAM
from tests.support.waiting import wait_until

_HOLDS = """
import signal
from agentq.cli.told_to_end import ending_in_order
from agentq.ops.tune.sysctls import Sysctls
with ending_in_order(), Sysctls() as sysctls, sysctls.holding("net.core.somaxconn", "512"):
    print("it holds", flush=True)
    while True:
        signal.pause()
"""


@pytest.mark.timeout(60)
def test_a_trial_measures_the_whole_chain_under_its_settings() -> None:
    few = {"AGENTQ_POOLS__SHARED__SLOTS": "8", "AGENTQ_WORKER__EVENTS": "false"}
    sample = Trial(variables=few, chains=20, program=PROGRAM, tcp=True).run()
    # Eight slots take 200 steps of 28 ms at least: a tool's 20 and a model's 8.
    assert 0 < sample.throughput < 20 / (200 * 0.028 / 8)
    assert 28 < sample.p50_ms <= sample.p99_ms
    assert sample.switches > 0


@pytest.mark.timeout(60)
def test_a_worker_that_ends_while_it_is_measured_ends_the_tuning_at_once() -> None:
    with home() as user:
        with user.running("tune", "--chains", "2000", until="1 of 5") as tune:
            wait_until(lambda: "callers 20" in str(user.processes()), "chains run", timeout=30)
            os.kill(user.one_process("--pool shared"), signal.SIGKILL)
            assert tune.process.wait(30) == 1
            assert "= 1000: while chains ran shared-0 (process" in tune.output
            assert "ended by signal 9" in tune.output
            assert "without it: --skip pools.shared.slots" in tune.output
        assert user.processes() == {}
        assert user.temporary_files() == []


def test_it_changes_nothing_and_leaves_its_file() -> None:
    with home() as user:
        done = user.run("tune", "--limit", "0s", "--skip", "pools.shared.slots")
        assert done.returncode == 0, done.stderr
        assert "no time was left for pools.shared.processes, batch.window" in done.stdout
        assert "prefetch: not tried, our workers have none" in done.stdout
        assert [path.name for path in user.work.iterdir()] == ["agentq-tune.jsonl"]


@pytest.fixture
def namespace() -> Iterator[list[str]]:
    """Return what runs a command in a network namespace: it has kernel settings of its own."""
    if os.geteuid() or shutil.which("nsenter") is None:
        pytest.skip("kernel settings are tried by root alone, here in a namespace (util-linux)")
    command = ["/usr/bin/env", "unshare", "--net", "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"in it\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == b"in it\n"  # until then it is the machine's own
        yield ["/usr/bin/env", "nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        holder.kill()


def somaxconn(namespace: list[str]) -> str:
    path = "/proc/sys/net/core/somaxconn"
    return subprocess.check_output([*namespace, "cat", path], text=True).strip()


@pytest.mark.timeout(60)
def test_a_kernel_setting_is_put_back_however_it_ends(namespace: list[str]) -> None:
    before = somaxconn(namespace)
    assert before != "512"
    with home() as user:
        for number, left in (
            (signal.SIGINT, before), (signal.SIGTERM, before), (signal.SIGKILL, "512"),
        ):  # fmt: skip
            with RunningCommand([*namespace, sys.executable, "-c", _HOLDS], user, {}) as tune:
                tune.wait_for("it holds")
                assert somaxconn(namespace) == "512"
                tune.end(number)
            assert somaxconn(namespace) == left
        done = told(namespace, user)
        assert f"net.core.somaxconn = {before}: a tuning that was killed had left it" in done
        assert somaxconn(namespace) == before


def told(namespace: list[str], user: Home) -> str:
    command = [*namespace, *user.command("tune", "--limit", "0s")]
    with RunningCommand(command, user, {}) as tune:
        assert tune.process.wait(25) == 0, tune.output
        return tune.output
