"""Which allocator is live, in real processes launched with and without jemalloc."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import agentq
from agentq.host.allocator import Allocator, describe, find_jemalloc, launch_environment
from agentq.host.preload import find_library, how_to_install

JEMALLOC = find_jemalloc()
TCMALLOC = find_library("tcmalloc")
needs_tcmalloc = pytest.mark.skipif(TCMALLOC is None, reason="apt install libtcmalloc-minimal4")
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
_POOL = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
from agentq.host.allocator import live
from agentq.host.parent import begin_child
context = multiprocessing.get_context("forkserver")
with ProcessPoolExecutor(1, mp_context=context, initializer=begin_child, initargs=(".",)) as pool:
    print(pool.submit(live).result().background_thread)
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
    monkeypatch.setattr("agentq.host.preload._candidates", lambda *_: iter([broken]))
    assert find_jemalloc() is None
    assert launch_environment("jemalloc", environ={}) == {"MALLOC_ARENA_MAX": "2"}
    found = Allocator(name="glibc", version="2.36", arena_max="2")
    said = f"glibc 2.36, MALLOC_ARENA_MAX=2 (jemalloc not found: {how_to_install('jemalloc')})"
    assert describe(found) == said
    assert describe(found, wanted="glibc") == "glibc 2.36, MALLOC_ARENA_MAX=2"


@needs_jemalloc
@pytest.mark.parametrize(
    "folder", [f"usr/lib/{platform.machine()}-linux-gnu", "usr/lib64", "usr/lib"]
)
def test_a_library_is_found_where_each_distribution_has_it(tmp_path: Path, folder: str) -> None:
    assert JEMALLOC
    place = tmp_path / folder / JEMALLOC.name
    place.parent.mkdir(parents=True)
    place.write_bytes(JEMALLOC.read_bytes())
    assert find_library("jemalloc", root=tmp_path) == place
    assert find_library("tcmalloc", root=tmp_path) is None


@pytest.mark.parametrize(
    ("release", "jemalloc", "tcmalloc"),
    [
        ({"ID": "debian"}, "apt install libjemalloc2", "apt install libtcmalloc-minimal4"),
        (
            {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"},
            "apt install libjemalloc2",
            "apt install libtcmalloc-minimal4",
        ),
        ({"ID": "openEuler"}, "dnf install jemalloc", "dnf install gperftools-libs"),
        (
            {"ID": "rocky", "ID_LIKE": "rhel centos fedora"},
            "dnf install jemalloc",
            "dnf install gperftools-libs",
        ),
        ({"ID": "alpine"}, "apk add jemalloc", "apk add gperftools"),
        (
            {"ID": "haiku"},
            "apt install libjemalloc2, or dnf install jemalloc, or apk add jemalloc",
            "apt install libtcmalloc-minimal4, or dnf install gperftools-libs, or apk add gperftools",
        ),
    ],
)
def test_the_package_of_the_distribution_is_named(
    release: dict[str, str], jemalloc: str, tcmalloc: str
) -> None:
    assert how_to_install("jemalloc", release=release) == jemalloc
    assert how_to_install("tcmalloc", release=release) == tcmalloc


@needs_jemalloc
def test_a_pinned_prefork_worker_gets_fewer_arenas_and_gives_back_sooner() -> None:
    environ = launch_environment("jemalloc", kind="prefork", environ=_CLEAN)
    assert environ["MALLOC_CONF"] == (
        "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0,narenas:2"
    )


@needs_tcmalloc
def test_a_process_launched_for_tcmalloc_runs_on_it() -> None:
    environ = launch_environment("tcmalloc", environ=_CLEAN)
    assert environ == {"LD_PRELOAD": str(TCMALLOC), "MALLOC_ARENA_MAX": "2"}
    said = run(_DESCRIBE, **environ)
    assert said.startswith("tcmalloc 2.")
    assert said.endswith(" (preloaded)")


@needs_jemalloc
def test_the_system_python_which_is_linked_differently_is_judged_right_too() -> None:
    system = Path("/usr/bin/python3")
    version = "import sys; raise SystemExit(sys.version_info < (3, 11))"
    if not system.exists() or subprocess.call([system, "-c", version]):
        pytest.skip("no /usr/bin/python3 of 3.11 or newer")
    # Without the package's own __init__, which needs what that Python lacks.
    describe_it = (
        "import sys, types; package = sys.modules['agentq'] = types.ModuleType('agentq'); "
        f"package.__path__ = [{str(Path(agentq.__file__).parent)!r}]; "
        "from agentq.host.allocator import describe; print(describe())"
    )
    for wanted in ("jemalloc", "glibc"):
        environ = _CLEAN | launch_environment(wanted, environ=_CLEAN)
        said = subprocess.check_output([system, "-c", describe_it], env=environ, text=True)
        assert said.startswith(f"{wanted} ")


@needs_jemalloc
def test_a_background_thread_that_the_user_forbids_stays_off_in_children() -> None:
    environ = launch_environment("jemalloc", environ=_CLEAN)
    conf = environ["MALLOC_CONF"].replace("background_thread:true", "background_thread:false")
    program = "from agentq.host.allocator import *; print(enable_background_thread())"
    assert run(program, **environ | {"MALLOC_CONF": conf}) == "False"
    assert run(program, **environ) == "True"


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


@needs_jemalloc
def test_a_process_of_the_cpu_pool_has_its_background_thread_back() -> None:
    assert run(_POOL, **launch_environment("jemalloc", environ=_CLEAN)) == "True"


def test_keeping_the_thread_without_jemalloc_changes_nothing() -> None:
    assert run(_FORK, "keep") == "None 1"
