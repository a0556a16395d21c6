"""Every call to the broker may fail: seeded faults in the store clients of workers and producers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.scenarios.store_faults import KINDS, Kind, store_faults
from tests.support.redis_server import Server

WORK: dict[Kind, int] = {"agentq": 90, "prefork": 24}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("number", "rate", "kind"), KINDS)
def test_seeded_faults_of_the_store_lose_and_double_nothing(
    session_server: Server, tmp_path: Path, number: int, rate: float, kind: Kind
) -> None:
    row = store_faults(
        session_server, tmp_path, number=number, rate=rate, work=WORK[kind], kind=kind
    )
    print(row)
    assert row.tried > 0
    assert row.holds, row
