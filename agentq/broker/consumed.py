"""How long a process has had room and taken no work: a stalled one is told by it from an idle one.

A lease says that a process is there. One that renews its lease and takes nothing, since its rights,
its link for work or its intake are broken, looks as alive as one that has nothing to do. One that
is full, warms up, drains or is short of memory has no room: its time begins when it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Consumed:
    """Looked at once a renewal, so it costs a step nothing."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin now."""
        self._clock = clock
        self._taken = 0
        self._since = clock()

    def report(self, running: int, done: int, slots: int) -> dict[str, int]:
        """Return how many steps run and have ended, and for how many ms *slots* had room for more.

        It begins anew whenever one is taken or ends.
        """
        if running + done != self._taken or running >= slots:
            self._taken, self._since = running + done, self._clock()
        still_ms = round(1000 * (self._clock() - self._since))
        return {"running": running, "done": done, "still_ms": still_ms}
