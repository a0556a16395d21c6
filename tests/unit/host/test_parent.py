"""A process that ends with the one that started it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentq.host.parent import end_with_parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's doing, on Linux")

_CHILD = "import os, time; from agentq.host.parent import end_with_parent; end_with_parent(os.getppid()); print(os.getpid(), flush=True); time.sleep(60)"
_PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(60)"


def test_a_killed_parent_takes_its_child_with_it() -> None:
    reading, writing = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, _CHILD], stdout=writing)
    os.close(writing)
    with os.fdopen(reading) as said:
        child = int(said.readline())
        assert Path(f"/proc/{child}").exists()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        # The pipe ends when the last process that could write to it has ended.
        assert select.select([said], [], [], 10)[0]
        assert said.read() == ""


def test_a_parent_that_has_gone_already_is_noticed() -> None:
    with pytest.raises(SystemExit, match="process 1234567, which started this one, has gone"):
        end_with_parent(1234567)
