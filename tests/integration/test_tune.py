"""`agentq tune` on a real server and real workers."""

from __future__ import annotations

import pytest

from agentq.ops.tune.trial import Trial
from tests.support.command_line import home
from tests.support.redis_server import PROGRAM


@pytest.mark.timeout(60)
def test_a_trial_measures_the_whole_chain_under_its_settings() -> None:
    few = {"AGENTQ_POOLS__SHARED__SLOTS": "8", "AGENTQ_WORKER__EVENTS": "false"}
    sample = Trial(variables=few, chains=20, program=PROGRAM).run()
    # Eight slots take 200 steps of 28 ms at least: a tool's 20 and a model's 8.
    assert 0 < sample.throughput < 20 / (200 * 0.028 / 8)
    assert 28 < sample.p50_ms <= sample.p99_ms
    assert sample.switches > 0


def test_it_changes_nothing_and_leaves_its_file() -> None:
    with home() as user:
        done = user.run("tune", "--limit", "0s")
        assert done.returncode == 0, done.stderr
        assert "no time was left for pools.shared.slots" in done.stdout
        assert [path.name for path in user.work.iterdir()] == ["agentq-tune.jsonl"]
