"""How this worker's steps and tasks ended, by name, until the cell is told, for `agentq metrics`.

Counted in the process, which costs a step a look into a dictionary, and added to the cell's hash
`counts` every few seconds by the sweeper. So the sums outlive the worker; one that is killed takes
along what it had not told yet. The functions count runs themselves, and what died with a worker.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentq.errors import StepTimeout
from agentq.store.counts import BUCKETS_S, MOST_NAMES, OTHERS, Happened, bucket, field_of

if TYPE_CHECKING:
    from agentq.store.client import AsyncStore

TELL_EVERY_S = 5.0

_COUNTED = (
    Happened.MILLISECONDS, Happened.FAILED, Happened.RETRIED, Happened.TIMEOUT,
    *(bucket(number) for number in range(len(BUCKETS_S) + 1)),
)  # fmt: skip
_MS, _FAILED, _RETRIED, _TIMEOUT, _FIRST_BUCKET = range(5)
"""Places in a name's counts."""

Counts = dict[str, list[float]]


class Outcomes:
    """One per process, of the loop's thread alone."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._counts: Counts = {}
        self._names: set[str] = set()
        self._told = time.monotonic()

    def returned(self, name: str, ran_s: float) -> None:
        """Count one that returned."""
        counts = self._of(name)
        counts[_MS] += ran_s * 1000
        counts[_FIRST_BUCKET + bisect_left(BUCKETS_S, ran_s)] += 1

    def raised(self, name: str, error: BaseException, *, again: bool) -> None:
        """Count one that raised, and is tried *again* or has failed for good."""
        counts = self._of(name)
        counts[_RETRIED if again else _FAILED] += 1
        counts[_TIMEOUT] += isinstance(error, StepTimeout)

    def _of(self, name: str) -> list[float]:
        if (counts := self._counts.get(name)) is not None:
            return counts
        if name not in self._names:
            if len(self._names) < MOST_NAMES:
                self._names.add(name)
            else:
                name = OTHERS
        return self._counts.setdefault(name, [0.0] * len(_COUNTED))

    def taken(self) -> Counts:
        """Return what was counted, and begin anew."""
        counted, self._counts = self._counts, {}
        return counted

    def add(self, counted: Mapping[str, list[float]]) -> None:
        """Count as well what a child, or a call that failed, had."""
        for name, counts in counted.items():
            own = self._of(name)
            own[:] = [one + more for one, more in zip(own, counts, strict=True)]

    @property
    def due(self) -> bool:
        """Whether there is something to tell, and the last time is long enough ago."""
        return bool(self._counts) and time.monotonic() - self._told >= TELL_EVERY_S

    async def tell(self, store: AsyncStore) -> None:
        """Add what was counted to the cell's counts.

        Raises:
            BrokerUnavailable: no answer in time: all is told again; if it was heard, counted twice.
        """
        if not self._counts:
            return
        self._told = time.monotonic()
        key, counted = store.keys.counts(), self.taken()
        calls = [
            ("HINCRBY", key, field_of("step", name, what), round(count))
            for name, counts in counted.items()
            for what, count in zip(_COUNTED, counts, strict=True)
            if count
        ]
        try:
            await store.pipeline(calls)
        except BaseException:
            self.add(counted)
            raise
