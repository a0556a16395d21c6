"""Nice value and OOM score, in a process of its own: they are not taken back without a right."""

from __future__ import annotations

import subprocess
import sys

_SET = """
import os
from agentq.host.priority import set_nice, set_oom_score
print(set_nice(5), set_oom_score(700), os.getpriority(os.PRIO_PROCESS, 0), sep="; ")
print(open("/proc/self/oom_score_adj").read())
os.nice(19)
os.setresuid(65534, 65534, 65534) if os.getuid() == 0 else None
print(set_nice(-5))
"""


def test_what_the_kernel_made_of_it_is_said() -> None:
    said = subprocess.check_output([sys.executable, "-c", _SET], text=True).split("\n")
    assert said[0] == "nice 5; OOM score 700; 5"
    assert said[1] == "700"
    assert said[3] == "nice 19 (asked for -5)"
