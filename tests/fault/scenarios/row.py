"""One line of the fault matrix: what was done to the system, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What a scenario counted, from a ledger outside Redis.

    number: the row of the fault table (1 to 26); from 27 on what the table does not have.
    fault: what was done, in a few words.
    tried: the faults done; 0 says that this machine can not do it, and `note` says why.
    lost: accepted work that had no outcome at the end, and whatever else should have happened and did not.
    doubled: effects that were there more than once, and whatever else happened that must not.
    recovery_s: the longest time from the end of the fault to working again; None where nothing had to recover.
    note: what a reader needs beside the figures, such as a window of loss that is by design.
    """

    number: int
    fault: str
    tried: int
    lost: int
    doubled: int
    recovery_s: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        """Nothing was lost and nothing was done twice."""
        return self.lost == 0 and self.doubled == 0
