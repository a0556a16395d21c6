"""The memory allocator: how a process is launched on one, and which one is really live.

What jemalloc buys is memory given back after a burst, and only with the settings below. A wrong
LD_PRELOAD is merely a line on stderr, hence a probe before launching (`preload`) and a look at what
is live afterwards.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentq.host.preload import find_library, how_to_install

Choice = Literal["jemalloc", "tcmalloc", "glibc"]

# By what a process is: one loop and some threads, or a task at a time on one pinned core.
MALLOC_CONF: Mapping[str, str] = {
    "loop": "background_thread:true,dirty_decay_ms:5000,muzzy_decay_ms:0,narenas:4",
    "prefork": "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0,narenas:2",
}


@dataclass(frozen=True, kw_only=True)
class Allocator:
    """The allocator that serves malloc in this process."""

    name: str
    """"jemalloc", "tcmalloc", "mimalloc", "glibc", or "unknown"."""
    version: str = ""
    library: Path | None = None
    """The file that malloc's code is mapped from."""
    background_thread: bool | None = None
    """Whether jemalloc returns memory while the process is idle; None for the others."""
    arena_max: str | None = None
    """MALLOC_ARENA_MAX, which only glibc reads."""

    def __str__(self) -> str:
        """Return e.g. ``jemalloc 5.3.0``."""
        return f"{self.name} {self.version}".rstrip()


def find_jemalloc() -> Path | None:
    """Return a jemalloc that loads on this machine, else None."""
    return find_library("jemalloc")


def launch_environment(
    allocator: Choice,
    *,
    kind: Literal["loop", "prefork"] = "loop",
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the variables to add to *environ* for a process that shall run on *allocator*.

    Settings that the user made are kept; where *allocator* is missing it is glibc with two arenas.
    *kind*: our asyncio worker, or one of Celery's prefork pool.
    """
    added = {"MALLOC_ARENA_MAX": environ.get("MALLOC_ARENA_MAX", "2")}
    if allocator != "glibc" and (library := find_library(allocator)):
        others = _split(environ.get("LD_PRELOAD", ""))
        added["LD_PRELOAD"] = ":".join(dict.fromkeys([str(library), *others]))
        if allocator == "jemalloc":
            added["MALLOC_CONF"] = environ.get("MALLOC_CONF", MALLOC_CONF[kind])
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
            background_thread=_switch(libc, b"background_thread"),
        )
    if _owns(libc, "tc_version", library):
        libc.tc_version.restype = ctypes.c_char_p
        version = libc.tc_version(None, None, None).decode().removeprefix("gperftools ")
        return Allocator(name="tcmalloc", version=version, library=library)
    if _owns(libc, "mi_version", library):
        return Allocator(name="mimalloc", version=str(libc.mi_version()), library=library)
    if _owns(libc, "gnu_get_libc_version", library):
        libc.gnu_get_libc_version.restype = ctypes.c_char_p
        version = libc.gnu_get_libc_version().decode()
        arena_max = os.environ.get("MALLOC_ARENA_MAX")
        return Allocator(name="glibc", version=version, library=library, arena_max=arena_max)
    return Allocator(name="unknown", library=library)


def describe(allocator: Allocator | None = None, *, wanted: Choice = "jemalloc") -> str:
    """Return one line on *allocator*, by default the live one, and why it is not the *wanted* one.

    The line names the command that installs what is missing.
    """
    found = allocator or live()
    if found.name in {"jemalloc", "tcmalloc"}:
        asked = [Path(part).resolve() for part in _split(os.environ.get("LD_PRELOAD", ""))]
        how = "preloaded" if found.library in asked else "linked in"
        on = {True: ", background thread on", False: ", background thread off", None: ""}
        return f"{found} ({how}){on[found.background_thread]}"
    if found.name == "glibc":
        arenas = f"MALLOC_ARENA_MAX={found.arena_max}" if found.arena_max else "arenas unlimited"
        return f"{found}, {arenas}{_instead(wanted)}"
    return f"{found} allocator ({sys.platform})"


def _split(preload: str) -> list[str]:
    """Return the files that LD_PRELOAD names."""
    return [part for part in re.split(r"[: ]", preload) if part]


def _instead(wanted: Choice) -> str:
    if wanted == "glibc":
        return ""
    missing = f"not found: {how_to_install(wanted)}"
    return f" ({wanted} {'installed, not preloaded' if find_library(wanted) else missing})"


def enable_background_thread() -> bool:
    """Let jemalloc return memory by itself; return whether it does, False without jemalloc.

    Where MALLOC_CONF says so: fork leaves that thread behind, and a child has to ask for it again.
    """
    if live().name != "jemalloc":
        return False
    libc, on = ctypes.CDLL(None), ctypes.c_bool(True)  # noqa: FBT003 -- a C value
    if _switch(libc, b"opt.background_thread"):
        size = ctypes.c_size_t(ctypes.sizeof(on))
        libc.mallctl(b"background_thread", None, None, ctypes.byref(on), size)
    return _switch(libc, b"background_thread")


@functools.cache
def keep_background_thread_after_fork() -> None:
    """Start the background thread in every forked child from now on: fork leaves it behind.

    Only where the parent has one. Called again it does nothing.
    """
    if live().background_thread:
        os.register_at_fork(after_in_child=enable_background_thread)


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


def _switch(libc: ctypes.CDLL, name: bytes) -> bool:
    """Return what jemalloc says of one of its switches."""
    on = ctypes.c_bool()
    size = ctypes.c_size_t(ctypes.sizeof(on))
    failed = libc.mallctl(name, ctypes.byref(on), ctypes.byref(size), None, ctypes.c_size_t(0))
    return bool(on.value) and not failed
