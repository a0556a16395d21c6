"""The allocators that this machine has to preload: found where distributions put them, and probed.

None is ever built here: where one is missing the distribution's package is named.

               file                       Debian                 openEuler, RHEL   Alpine
    jemalloc   libjemalloc.so.2           libjemalloc2           jemalloc          jemalloc
    tcmalloc   libtcmalloc_minimal.so.4   libtcmalloc-minimal4   gperftools-libs   gperftools
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

Preloaded = Literal["jemalloc", "tcmalloc"]

_FILES: Mapping[Preloaded, str] = {
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",  # without the profiler, which workers do not need
}
_INSTALL: Mapping[str, Mapping[Preloaded, str]] = {
    "debian": {
        "jemalloc": "apt install libjemalloc2",
        "tcmalloc": "apt install libtcmalloc-minimal4",
    },
    "fedora": {
        "jemalloc": "dnf install jemalloc",
        "tcmalloc": "dnf install gperftools-libs",
    },
    "alpine": {
        "jemalloc": "apk add jemalloc",
        "tcmalloc": "apk add gperftools",
    },
}
_FAMILIES = {
    "debian": "debian",
    "ubuntu": "debian",
    "fedora": "fedora",
    "rhel": "fedora",
    "centos": "fedora",
    "openeuler": "fedora",  # says of itself that it is like nobody
    "alpine": "alpine",
}
_PROBE_LIMIT_S = 5


def find_library(name: Preloaded, *, root: Path = Path("/")) -> Path | None:
    """Return the allocator's file if a program runs with it here; /bin/true is that program.

    It may be there and yet abort: on kernels with large pages, or built for another libc.

    Args:
        name: which.
        root: of the file system; another than ``/`` is not asked for its ``ldconfig``.
    """
    if sys.platform != "linux":
        return None
    return next((path for path in _candidates(name, root) if path.exists() and _loads(path)), None)


def how_to_install(name: Preloaded, *, release: Mapping[str, str] | None = None) -> str:
    """Return the command that installs *name*; of several where the distribution is unknown.

    *release*: the fields of ``/etc/os-release``; None: this machine's.
    """
    known = _release() if release is None else release
    for word in (known.get("ID", ""), *known.get("ID_LIKE", "").split()):
        if family := _FAMILIES.get(word.lower()):
            return _INSTALL[family][name]
    return ", or ".join(commands[name] for commands in _INSTALL.values())


def _release() -> Mapping[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _candidates(name: Preloaded, root: Path) -> Iterator[Path]:
    file, machine = _FILES[name], platform.machine()
    yield root / f"usr/lib/{machine}-linux-gnu" / file  # Debian, Ubuntu
    yield root / "usr/lib64" / file  # openEuler, RHEL, Fedora, SUSE
    yield root / "usr/lib" / file  # Alpine, Arch
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if ldconfig and root == Path("/"):
        listed = _run([ldconfig, "-p"]).stdout
        for match in re.finditer(rf"{re.escape(file)} .*=> (\S+)", listed):
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
