"""A file in which steps note what they do: counts that come from outside the system under test."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

VARIABLE = "AQ_TEST_LEDGER"


def note(*words: object) -> None:
    """Append a line; one write, so that lines of many processes do not mix."""
    line = " ".join(str(word) for word in words) + "\n"
    handle = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


class Ledger:
    """The test's side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    @classmethod
    def at(cls, path: str) -> Ledger:
        return cls(Path(path))

    def lines(self, beginning: str = "") -> list[str]:
        lines = self.path.read_text().split("\n")[:-1]  # the last may still be being written
        return [line for line in lines if line.startswith(beginning)]

    def count(self, line: str) -> int:
        return self.lines().count(line)

    def clear(self) -> None:
        self.path.write_text("")

    def counts(self, beginning: str = "") -> Counter[str]:
        return Counter(self.lines(beginning))
