"""Raising the limit on open files, in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

_RAISE = """
import resource, sys
from agentq.host.limits import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 512))
raised = raise_open_files()
print(raised, (raised.before, raised.now, raised.hard), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 512, reason="limit is low")
@pytest.mark.parametrize(
    ("soft", "said"),
    [
        ("64", "open files: 512 (raised from 64) (64, 512, 512) (512, 512)"),
        ("512", "open files: 512 (512, 512, 512) (512, 512)"),
    ],
)
def test_the_soft_limit_becomes_the_hard_one_and_the_real_value_is_said(
    soft: str, said: str
) -> None:
    command = [sys.executable, "-c", _RAISE, soft]
    assert subprocess.check_output(command, text=True).strip() == said
