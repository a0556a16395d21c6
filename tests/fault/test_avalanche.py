"""Half of a fleet dies under load while what it asks fails: the rest is not buried under retries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.scenarios.avalanche import LEASE_S, NUMBER, Plan, avalanche
from tests.support.redis_server import Server


@pytest.mark.timeout(120)
def test_retries_stay_within_their_budget_and_the_backlog_of_a_halved_fleet_drains(
    session_server: Server, tmp_path: Path
) -> None:
    plan = Plan(half=1, warm_s=0.5, dead_s=2.5, failing=0.3, least=2)
    found = avalanche(session_server, tmp_path, plan)
    row = found.row(NUMBER)
    print(row)
    assert row.holds, row
    assert found.held > 0
    assert 0 < found.retries <= found.allowed
    assert found.free_s < LEASE_S + 2 + 3  # a child process starts meanwhile, on a busy machine
