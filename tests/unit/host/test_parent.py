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


_SPAWNER = """
import multiprocessing, os, time
from pathlib import Path
from agentq.host.parent import end_with_spawner

def child(spawner):
    while Path(f"/proc/{spawner}").exists():
        time.sleep(0.01)
    end_with_spawner()
    print("lives on", flush=True)

if __name__ == "__main__":
    multiprocessing.get_context("forkserver").Process(target=child, args=[os.getpid()]).start()
    print("spawned", flush=True)
    time.sleep(60)
"""


def test_a_child_of_a_fork_server_ends_whose_spawner_was_killed_before_it_could_watch(
    tmp_path: Path,
) -> None:
    (tmp_path / "spawner.py").write_text(_SPAWNER)
    spawner = subprocess.Popen(
        [sys.executable, tmp_path / "spawner.py"], stdout=subprocess.PIPE, text=True
    )
    with spawner:
        assert spawner.stdout is not None
        assert spawner.stdout.readline() == "spawned\n"
        spawner.kill()
        spawner.wait()
        assert select.select([spawner.stdout], [], [], 10)[0]
        assert spawner.stdout.read() == ""


def test_a_parent_that_has_gone_already_is_noticed() -> None:
    with pytest.raises(SystemExit, match="process 1234567, which started this one, has gone"):
        end_with_parent(1234567)
