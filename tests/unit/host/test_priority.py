"""Nice value, slice and OOM score, in a process of its own: they are not taken back without a right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentq.host.priority import shorten_slice

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


_AUTOGROUP = Path("/proc/self/autogroup")

_LEADER = """
import threading
from agentq.host.priority import set_nice
set_nice(7)
print(open("/proc/self/autogroup").read())
"""


@pytest.mark.skipif(not _AUTOGROUP.exists(), reason="this kernel has no CONFIG_SCHED_AUTOGROUP")
@pytest.mark.parametrize("leads", [True, False])
def test_a_session_is_as_nice_as_the_process_that_leads_it(*, leads: bool) -> None:
    before = _AUTOGROUP.read_text()
    command = [sys.executable, "-c", _LEADER]
    said = subprocess.run(
        command, capture_output=True, check=True, text=True, start_new_session=leads
    ).stdout
    assert ("nice 7" in said) is leads
    assert _AUTOGROUP.read_text() == before


_SHORT = """
import os, threading
from agentq.host.priority import shorten_slice
stop = threading.Event()
threading.Thread(target=stop.wait).start()
os.getuid() or os.setresuid(65534, 65534, 65534)
print(shorten_slice())
stop.set()
"""
_SHOW = """
for thread in os.listdir("/proc/self/task"):
    print(*[row for row in open(f"/proc/self/task/{thread}/sched") if "se.slice" in row])
"""


def test_a_short_slice_needs_no_right_and_is_every_thread_s() -> None:
    said = subprocess.check_output([sys.executable, "-c", _SHORT], text=True).strip()
    if not said:
        pytest.skip("this kernel has no slices of a process' own (Linux 6.12)")
    assert said == "slice 0.1 ms"
    shown = _SHORT.replace("os.getuid() or", "0 and").replace("stop.set()", f"{_SHOW}stop.set()")
    rows = subprocess.check_output([sys.executable, "-c", shown], text=True).split("\n")
    assert {row.split()[-1] for row in rows if "se.slice" in row} <= {"100000"}


_FORK = """
import os
from agentq.host.priority import shorten_slice
shorten_slice(forked=False)
child = os.fork()
print(*[row for row in open("/proc/self/sched") if "se.slice" in row], flush=True)
child and os.waitpid(child, 0)
"""


def test_what_a_process_forks_need_not_have_its_slice() -> None:
    said = subprocess.check_output([sys.executable, "-c", _FORK], text=True)
    slices = [int(row.split()[-1]) for row in said.split("\n") if "se.slice" in row]
    if min(slices, default=0) != 100_000:
        pytest.skip(
            "this kernel has no slices of a process' own (Linux 6.12), or does not show them"
        )
    assert max(slices) > 100_000


def test_a_process_that_has_ended_has_no_slice() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert shorten_slice(pid=ended.pid) == ""
