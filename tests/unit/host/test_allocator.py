"""Which allocator is live, in real processes launched with and without jemalloc."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from agentq.host import allocator
from agentq.host.allocator import Allocator, describe, find_jemalloc, launch_environment

JEMALLOC = find_jemalloc()
needs_jemalloc = pytest.mark.skipif(JEMALLOC is None, reason="no jemalloc: apt libjemalloc2")
_CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in {"LD_PRELOAD", "MALLOC_CONF", "MALLOC_ARENA_MAX"}
}
_DESCRIBE = "from agentq.host.allocator import *; print(describe())"
_FORK = """
import os, sys
from agentq.host.allocator import *
if sys.argv[1] == "keep":
    keep_background_thread_after_fork(); keep_background_thread_after_fork()
if not os.fork():
    print(live().background_thread, len(os.listdir("/proc/self/task")), flush=True)
    os._exit(0)
os.wait()
"""


def run(program: str, *arguments: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=_CLEAN | environ,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def glibc() -> str:
    return f"glibc {platform.libc_ver()[1]}"


@needs_jemalloc
def test_a_process_launched_for_jemalloc_runs_on_it() -> None:
    environ = launch_environment("jemalloc", environ=_CLEAN)
    assert environ == {
        "LD_PRELOAD": str(JEMALLOC),
        "MALLOC_CONF": "background_thread:true,dirty_decay_ms:5000,muzzy_decay_ms:0,narenas:4",
        "MALLOC_ARENA_MAX": "2",
    }
    assert run(_DESCRIBE, **environ).endswith(" (preloaded), background thread on")
    assert run(_DESCRIBE, **environ).startswith("jemalloc 5.")


@needs_jemalloc
def test_a_process_launched_for_glibc_runs_on_it_with_two_arenas() -> None:
    environ = launch_environment("glibc", environ=_CLEAN)
    assert run(_DESCRIBE, **environ) == (
        f"{glibc()}, MALLOC_ARENA_MAX=2 (jemalloc installed, not preloaded)"
    )


@needs_jemalloc
def test_a_jemalloc_that_is_loaded_but_does_not_serve_malloc_is_not_called_live() -> None:
    libc = next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        if "/libc." in line
    )
    said = run(_DESCRIBE, LD_PRELOAD=f"{libc}:{JEMALLOC}")
    assert said == f"{glibc()}, arenas unlimited (jemalloc installed, not preloaded)"


def test_a_preload_that_fails_is_seen_as_the_allocator_that_is_live(tmp_path: Path) -> None:
    broken = tmp_path / "libjemalloc.so.2"
    broken.write_bytes(b"no library")
    done = subprocess.run(
        [sys.executable, "-c", _DESCRIBE],
        env=_CLEAN | {"LD_PRELOAD": str(broken)},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout.startswith(glibc())


def test_a_jemalloc_that_does_not_load_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "libjemalloc.so.2"
    broken.write_bytes(b"no library")
    monkeypatch.setattr("agentq.host.allocator._candidates", lambda: iter([broken]))
    assert find_jemalloc() is None
    assert launch_environment("jemalloc", environ={}) == {"MALLOC_ARENA_MAX": "2"}
    found = Allocator(name="glibc", version="2.36", arena_max="2")
    assert describe(found) == (
        "glibc 2.36, MALLOC_ARENA_MAX=2 "
        "(jemalloc not found: apt install libjemalloc2, or dnf install jemalloc)"
    )


@needs_jemalloc
def test_the_system_python_which_is_linked_differently_is_judged_right_too() -> None:
    system = Path("/usr/bin/python3")
    version = "import sys; raise SystemExit(sys.version_info < (3, 11))"
    if not system.exists() or subprocess.call([system, "-c", version]):
        pytest.skip("no /usr/bin/python3 of 3.11 or newer")
    describe_it = f"import runpy; print(runpy.run_path({allocator.__file__!r})['describe']())"
    for wanted in ("jemalloc", "glibc"):
        environ = _CLEAN | launch_environment(wanted, environ=_CLEAN)
        said = subprocess.check_output([system, "-c", describe_it], env=environ, text=True)
        assert said.startswith(f"{wanted} ")


@needs_jemalloc
def test_what_the_user_set_is_kept() -> None:
    users = {"LD_PRELOAD": "/lib/mine.so", "MALLOC_CONF": "narenas:1", "MALLOC_ARENA_MAX": "8"}
    assert launch_environment("jemalloc", environ=users) == {
        "LD_PRELOAD": f"{JEMALLOC}:/lib/mine.so",
        "MALLOC_CONF": "narenas:1",
        "MALLOC_ARENA_MAX": "8",
    }


@needs_jemalloc
def test_a_forked_child_has_its_background_thread_back() -> None:
    environ = launch_environment("jemalloc", environ=_CLEAN)
    assert run(_FORK, "leave", **environ) == "False 1"
    assert run(_FORK, "keep", **environ) == "True 2"


def test_keeping_the_thread_without_jemalloc_changes_nothing() -> None:
    assert run(_FORK, "keep") == "None 1"
