"""Where the kernel's files are: an argument, so that a written tree stands for any machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Roots:
    """The folder that has /proc and /sys, as `agentq.host` takes it."""

    root: Path = Path("/")

    @property
    def proc(self) -> Path:
        """Return where /proc is."""
        return self.root / "proc"

    @property
    def sys(self) -> Path:
        """Return where /sys is."""
        return self.root / "sys"

    def number(self, name: str) -> int:
        """Return the number in a file of /proc.

        Raises:
            OSError: it is hidden or this kernel has none.
        """
        return int((self.proc / name).read_text(encoding="ascii").split()[0])

    def named(self, program: str) -> Iterator[int]:
        """Yield the ids of the processes that run *program* (as `comm` has it)."""
        for comm in self.proc.glob("[0-9]*/comm"):
            try:
                if comm.read_text(encoding="utf-8", errors="replace").strip() == program:
                    yield int(comm.parent.name)
            except OSError:
                continue  # it has ended
