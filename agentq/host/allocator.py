"""The memory allocator: find jemalloc, launch with it, and say which one is really live.

What jemalloc buys is memory given back after a burst, and only with the settings below. A wrong
LD_PRELOAD is merely a line on stderr, hence a probe before launching and a look at what is live
afterwards.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# For processes with one loop and some threads: few arenas, memory returned after five seconds.
MALLOC_CONF = "background_thread:true,dirty_decay_ms:5000,muzzy_decay_ms:0,narenas:4"
_INSTALL = "apt install libjemalloc2, or dnf install jemalloc"
_PROBE_LIMIT_S = 5


@dataclass(frozen=True, kw_only=True)
class Allocator:
    """The allocator that serves malloc in this process."""

    name: str
    """"jemalloc", "mimalloc", "glibc", or "unknown"."""
    version: str = ""
    library: Path | None = None
    """The file that malloc's code is mapped from."""
    background_thread: bool | None = None
    """Whether jemalloc returns memory while the process is idle; None for the others."""
    arena_max: str | None = None
    """MALLOC_ARENA_MAX, which only glibc reads."""


def find_jemalloc() -> Path | None:
    """Return a jemalloc that loads on this machine, else None; runs /bin/true once per candidate.

    It may be there and yet abort: on kernels with large pages, or built for another libc.
    """
    if sys.platform != "linux":
        return None
    return next((path for path in _candidates() if path.exists() and _loads(path)), None)


def launch_environment(
    allocator: Literal["jemalloc", "glibc"], *, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables to add to *environ* for a process that shall run on *allocator*.

    Settings that the user made are kept; where there is no jemalloc it is glibc with two arenas.
    """
    added = {"MALLOC_ARENA_MAX": environ.get("MALLOC_ARENA_MAX", "2")}
    if allocator == "jemalloc" and (library := find_jemalloc()):
        others = [part for part in re.split(r"[: ]", environ.get("LD_PRELOAD", "")) if part]
        added["LD_PRELOAD"] = ":".join(dict.fromkeys([str(library), *others]))
        added["MALLOC_CONF"] = environ.get("MALLOC_CONF", MALLOC_CONF)
    return added


def live() -> Allocator:
    """Return the allocator that serves malloc here: the library that its code is mapped from.

    A jemalloc that is merely loaded too, by some extension module, is not it.
    """
    if sys.platform != "linux":
        return Allocator(name="unknown")
    libc = ctypes.CDLL(None)
    # Not malloc itself: a fixed-address executable (Debian's python3) has a stub for that.
    library = _library_at(_address(libc.malloc_usable_size))
    # Two symbols of one library: statically linked allocators are recognised as well.
    if _owns(libc, "mallctl", library):
        return Allocator(
            name="jemalloc",
            version=_jemalloc_version(libc),
            library=library,
            background_thread=_background_thread(libc),
        )
    if _owns(libc, "mi_version", library):
        return Allocator(name="mimalloc", version=str(libc.mi_version()), library=library)
    if _owns(libc, "gnu_get_libc_version", library):
        libc.gnu_get_libc_version.restype = ctypes.c_char_p
        version = libc.gnu_get_libc_version().decode()
        arena_max = os.environ.get("MALLOC_ARENA_MAX")
        return Allocator(name="glibc", version=version, library=library, arena_max=arena_max)
    return Allocator(name="unknown", library=library)


def describe(allocator: Allocator | None = None) -> str:
    """Return one line on *allocator*, by default the live one, and what would be better."""
    found = allocator or live()
    if found.name == "jemalloc":
        preloaded = found.library and found.library.name in os.environ.get("LD_PRELOAD", "")
        how = "preloaded" if preloaded else "linked in"
        thread = "on" if found.background_thread else "off"
        return f"jemalloc {found.version} ({how}), background thread {thread}"
    if found.name == "glibc":
        arenas = f"MALLOC_ARENA_MAX={found.arena_max}" if found.arena_max else "arenas unlimited"
        hint = "installed, not preloaded" if find_jemalloc() else f"not found: {_INSTALL}"
        return f"glibc {found.version}, {arenas} (jemalloc {hint})"
    return " ".join(filter(None, [found.name, found.version, f"allocator ({sys.platform})"]))


def enable_background_thread() -> bool:
    """Let jemalloc return memory by itself; return whether it does, False without jemalloc."""
    if live().name != "jemalloc":
        return False
    libc, on = ctypes.CDLL(None), ctypes.c_bool(True)  # noqa: FBT003 -- a C value
    size = ctypes.c_size_t(ctypes.sizeof(on))
    libc.mallctl(b"background_thread", None, None, ctypes.byref(on), size)
    return _background_thread(libc)


@functools.cache
def keep_background_thread_after_fork() -> None:
    """Start the background thread in every forked child from now on: fork leaves it behind.

    Only where the parent has one. Called again it does nothing.
    """
    if live().background_thread:
        os.register_at_fork(after_in_child=enable_background_thread)


def _candidates() -> Iterator[Path]:
    machine = platform.machine()
    yield Path(f"/usr/lib/{machine}-linux-gnu/libjemalloc.so.2")  # Debian, Ubuntu
    yield Path("/usr/lib64/libjemalloc.so.2")  # RHEL, Fedora, SUSE
    yield Path("/usr/lib/libjemalloc.so.2")  # Alpine, Arch
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if ldconfig:
        listed = _run([ldconfig, "-p"]).stdout
        for match in re.finditer(r"libjemalloc\.so\.2 .*=> (\S+)", listed):
            yield Path(match[1])


def _loads(library: Path) -> bool:
    """Say whether a program runs with *library*; ld.so only complains on stderr where it cannot."""
    program = shutil.which("true", path="/bin:/usr/bin") or sys.executable
    arguments = [] if Path(program).name == "true" else ["-c", ""]
    done = _run([program, *arguments], {"LD_PRELOAD": str(library), "PATH": "/usr/bin:/bin"})
    return done.returncode == 0 and not done.stderr


def _run(
    command: list[str], environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 -- system programs by fixed names
            command,
            env=environ,
            capture_output=True,
            text=True,
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _owns(libc: ctypes.CDLL, symbol: str, library: Path | None) -> bool:
    function = getattr(libc, symbol, None)
    return function is not None and _library_at(_address(function)) == library


def _library_at(address: int) -> Path | None:
    """Return the file that is mapped at *address* in this process."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        where, _, _, _, _, *file = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in where.split("-"))
        if first <= address < last:
            return Path(file[0]) if file else None
    return None


def _jemalloc_version(libc: ctypes.CDLL) -> str:
    text = ctypes.c_char_p()
    size = ctypes.c_size_t(ctypes.sizeof(text))
    if libc.mallctl(b"version", ctypes.byref(text), ctypes.byref(size), None, ctypes.c_size_t(0)):
        return "unknown"
    return (text.value or b"").decode().partition("-")[0]


def _background_thread(libc: ctypes.CDLL) -> bool:
    on = ctypes.c_bool()
    size = ctypes.c_size_t(ctypes.sizeof(on))
    failed = libc.mallctl(
        b"background_thread", ctypes.byref(on), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return bool(on.value) and not failed
