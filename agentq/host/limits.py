"""The number of files and sockets this process may have open, raised as far as it is allowed."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

_NR_OPEN = Path("/proc/sys/fs/nr_open")  # what RLIM_INFINITY means for this limit


@dataclass(frozen=True, kw_only=True)
class OpenFiles:
    """How many descriptors the process may have: at first, now, and at most."""

    before: int
    now: int
    hard: int

    def __str__(self) -> str:
        """Return e.g. ``open files: 20000 (raised from 1024)``."""
        raised = f" (raised from {self.before})" if self.now > self.before else ""
        return f"open files: {self.now}{raised}"


def raise_open_files() -> OpenFiles:
    """Raise the soft limit to the hard one and return what really holds; children inherit it.

    Never fails: where the system refuses, `now` is what it was.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ceiling() if hard == resource.RLIM_INFINITY else hard
    if before not in {hard, resource.RLIM_INFINITY} and most > before:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):
            most = before  # macOS states a hard limit that it does not grant
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(before=before, now=now, hard=most)


def _ceiling() -> int:
    try:
        return int(_NR_OPEN.read_text(encoding="ascii"))
    except OSError:
        return 10240  # macOS' OPEN_MAX
