"""A kernel of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.ops.doctor.kernel import Kernel


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "kernel")
