"""How often the keeper of a stock worker's lease looks after it."""

from __future__ import annotations

import pytest

from agentq.broker.lease_keeper import pace


@pytest.mark.parametrize(("lease_ms", "seconds"), [(15_000, 1.0), (3_000, 1.0), (600, 0.2)])
def test_a_lease_is_looked_after_each_second_and_thrice_within_a_short_one(
    lease_ms: int, seconds: float
) -> None:
    assert pace(lease_ms) == seconds
