"""Where the kernel's files are: arguments, so that a written tree stands for any machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Roots:
    """The two folders that the checks of the machine read."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def number(self, name: str) -> int:
        """Return the number in a file of /proc.

        Raises:
            OSError: it is hidden or this kernel has none.
        """
        return int((self.proc / name).read_text(encoding="ascii").split()[0])

    def limit(self, name: str, *, pid: int | str = "self", hard: bool = True) -> int | None:
        """Return a limit of a process, such as ``Max open files``; None: there is none.

        Raises:
            OSError: there is no such process, or it may not be asked.
            LookupError: this kernel has no such limit.
        """
        text = (self.proc / str(pid) / "limits").read_text(encoding="ascii")
        for line in text.splitlines():
            if line.startswith(name):
                value = line.removeprefix(name).split()[1 if hard else 0]
                return None if value == "unlimited" else int(value)
        raise LookupError(f"no limit {name!r}")

    def named(self, program: str) -> Iterator[int]:
        """Yield the ids of the processes that run *program* (as `comm` has it)."""
        for comm in self.proc.glob("[0-9]*/comm"):
            try:
                if comm.read_text(encoding="utf-8", errors="replace").strip() == program:
                    yield int(comm.parent.name)
            except OSError:
                continue  # it has ended
