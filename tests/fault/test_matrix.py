"""The fault matrix in its short form; `make fault` runs the long one."""

from __future__ import annotations

import pytest

from tests.fault.scenarios.matrix import MATRIX, Scenario

SHORT = [scenario for scenario in MATRIX if scenario.short]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("scenario", SHORT, ids=lambda one: f"{one.number}-{one.name}")
def test_a_fault_loses_nothing_and_doubles_nothing(scenario: Scenario) -> None:
    assert scenario.short is not None
    for row in scenario.short():
        print(row)
        if not row.tried:
            pytest.skip(row.note)
        assert (row.lost, row.doubled) == (0, 0), row


def test_every_row_of_the_table_is_tried() -> None:
    assert {scenario.number for scenario in MATRIX} >= set(range(1, 27))
