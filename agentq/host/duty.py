"""A share of CPU time for a process and its descendants, without control groups or rights.

Started beside them, as ``python -m agentq.host.duty PID SHARE``: every 25 ms it looks at what they
have used; while they are ahead of their share all but PID stand still (SIGSTOP, then SIGCONT)::

    used      ####....####....####....        one core, share 0.5

A standstill is at most `LONGEST`, far below a lease, so nobody is taken for dead by it. It is a
process of its own since a stopped process can not be told to end: whatever ends PID, by SIGKILL
too, ends this one by a signal, which lets all go on first.

The processes are known by descriptors (Linux 5.3), so no stranger is ever stopped that got the
number of one that has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from datetime import timedelta

from agentq.host.parent import end_with_parent
from agentq.host.process import cpu_seconds, descendants

LOOK_S = 0.025
LONGEST = timedelta(milliseconds=250)
SMALLEST = 0.1
"""Of a core: with less, a standstill would be longer than `LONGEST` to hold it."""

_SEARCH_S = 0.5
"""New processes are found so often; what they used until then is paid for afterwards."""

_BURST_S = 0.1
"""What was not used is kept for so long: an idle machine is not in debt, nor rich."""


class Budget:
    """How far the processes are behind or ahead of their share."""

    def __init__(self, share: float, *, wall: float, used: float) -> None:
        """Begin at *wall* and *used*, in seconds, with nothing saved."""
        self._share = share
        self._wall, self._used = wall, used
        self._saved = 0.0

    def pause(self, *, wall: float, used: float) -> float:
        """Return for how many seconds all must stand still now; 0: they may go on."""
        self._saved += self._share * (wall - self._wall) - (used - self._used)
        self._saved = min(self._saved, self._share * _BURST_S)
        self._wall, self._used = wall, used
        return min(max(0.0, -self._saved / self._share), LONGEST.total_seconds())


class Duty:
    """Holds the descendants of process *root* to a *share* of one core."""

    def __init__(self, *, root: int, share: float) -> None:
        """Look at them; nothing is stopped before `round`."""
        self._root = root
        self._known: dict[int, int] = {}
        """Process id -> its descriptor."""
        self._searched = 0.0
        self._search()
        self._budget = Budget(share, wall=time.monotonic(), used=self._used())

    def round(self) -> None:
        """Wait for a moment, then stop them for as long as they are ahead."""
        time.sleep(LOOK_S)
        if time.monotonic() - self._searched > _SEARCH_S:
            self._search()
        if pause := self._budget.pause(wall=time.monotonic(), used=self._used()):
            try:
                self._send(signal.SIGSTOP)
                time.sleep(pause)
            finally:
                self.let_go()

    def let_go(self) -> None:
        """Let all go on; one that was not stopped does not notice."""
        self._send(signal.SIGCONT)

    def _search(self) -> None:
        self._searched = time.monotonic()
        found = set(descendants(self._root)) - {os.getpid()}
        for pid in self._known.keys() - found:
            os.close(self._known.pop(pid))
        new = found - self._known.keys()
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                self._known[pid] = os.pidfd_open(pid)
        # One that has taken the number of another since it was listed is no descendant.
        for pid in new - set(descendants(self._root)) if new else ():
            if pid in self._known:
                os.close(self._known.pop(pid))

    def _used(self) -> float:
        total = 0.0
        for pid in (self._root, *self._known):
            with contextlib.suppress(ProcessLookupError):
                total += cpu_seconds(pid)
        return total

    def _send(self, number: signal.Signals) -> None:
        for descriptor in self._known.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)


def let_go(root: int) -> None:
    """Let all descendants of *root* go on: for whoever finds that a duty cycle was killed."""
    for pid in descendants(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def main(root: int, share: float) -> None:
    """Hold the descendants of *root*, which started this process, to *share* until it ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(root)
    duty = Duty(root=root, share=share)
    try:
        while os.getppid() == root:
            duty.round()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        duty.let_go()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
