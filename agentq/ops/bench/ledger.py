"""Counts executions in shared memory, outside the broker, so that no system counts itself.

The file holds a header (how many processes have taken a slot) and one slot a process:

    0    int64   slots taken
    64   slot 0: for each `Mark` (int64 count, double first, double last), padded to 128 bytes
    192  slot 1: ...

A process takes its slot under a file lock at its first tick and is from then on the slot's only
writer, so a tick is one `pack_into`. Instants are `time.monotonic()`, which all processes of one
machine share on Linux.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

PATH_VARIABLE = "BENCH_AGENTQ_LEDGER"

_HEADER = 64
_SLOT = 128
_SLOTS = 4096
_TALLY = struct.Struct("<qdd")
_TAKEN = struct.Struct("<q")


class Mark(IntEnum):
    """What an execution was."""

    STEP = 0  # a no-op, a sleeper, a member of a fan-out
    JOIN = 1  # the body of a fan-in
    REVIEW = 2  # the last step of a pipeline


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a mark was made, and when first and last (`time.monotonic()` seconds)."""

    count: int
    first: float
    last: float


class Ledger:
    """The shared counts: `tick()` in measured processes, `read()` in the one that measures.

    Each process may tick from one thread only.
    """

    def __init__(self, path: Path) -> None:
        """Name the file; it is opened at the first `tick()` or `read()`."""
        self._path = path
        self._map: mmap.mmap | None = None
        self._owner = 0
        self._offset = 0
        self._tallies: list[tuple[int, float]] = []

    @classmethod
    def create(cls, path: Path) -> Ledger:
        """Make the file, all zero (it is sparse: 4,096 slots cost nothing until taken)."""
        with path.open("xb") as file:
            file.truncate(_HEADER + _SLOT * _SLOTS)
        return cls(path)

    @classmethod
    def from_environment(cls) -> Ledger:
        """Return the ledger of the running benchmark.

        Raises:
            KeyError: if `BENCH_AGENTQ_LEDGER` is not set: only a benchmark runs these steps.
        """
        return cls(Path(os.environ[PATH_VARIABLE]))

    def tick(self, mark: Mark = Mark.STEP) -> None:
        """Count one execution."""
        if self._owner != os.getpid():  # a forked child must not write its parent's slot
            self._take_slot()
        assert self._map is not None  # noqa: S101 - for the type checker: taken above
        now = time.monotonic()
        count, first = self._tallies[mark]
        self._tallies[mark] = (count + 1, first or now)
        _TALLY.pack_into(self._map, self._offset + mark * _TALLY.size, count + 1, first or now, now)

    def read(self, mark: Mark = Mark.STEP) -> Tally:
        """Return the sum over all processes; all zero where nothing has run yet."""
        shared = self._opened()
        taken = _TAKEN.unpack_from(shared, 0)[0]
        tallies = [
            _TALLY.unpack_from(shared, _HEADER + _SLOT * slot + mark * _TALLY.size)
            for slot in range(taken)
        ]
        seen = [tally for tally in tallies if tally[0]]
        if not seen:
            return Tally(0, 0.0, 0.0)
        return Tally(
            sum(tally[0] for tally in seen),
            min(tally[1] for tally in seen),
            max(tally[2] for tally in seen),
        )

    def wait(self, mark: Mark, *, count: int, timeout_s: float) -> Tally:
        """Return the tally once it reaches *count*, or as it stands when the time is over."""
        end = time.monotonic() + timeout_s
        while (tally := self.read(mark)).count < count and time.monotonic() < end:
            time.sleep(0.002)
        return tally

    def _opened(self) -> mmap.mmap:
        if self._map is None:
            with self._path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
        return self._map

    def _take_slot(self) -> None:
        shared = self._opened()
        with self._path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            slot = _TAKEN.unpack_from(shared, 0)[0]
            if slot >= _SLOTS:
                raise OverflowError(f"the ledger has room for {_SLOTS} processes")
            _TAKEN.pack_into(shared, 0, slot + 1)
        self._owner = os.getpid()
        self._offset = _HEADER + _SLOT * slot
        self._tallies = [(0, 0.0) for _ in Mark]
