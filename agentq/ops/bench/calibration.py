"""A fixed Python loop, timed beside every test: it tells a busy or slow machine from a slow system.

On a quiet machine wall and CPU time agree. Wall far above CPU means that others used the cores
and the row beside it is worth little; CPU far above its usual value means a slower clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

WALL = "fixed Python loop: wall"
CPU = "fixed Python loop: CPU"
"""How rows call the two figures; they are no comparison of systems."""

_ROUNDS = 1_500_000
_BUSY_ABOVE = 1.15


@dataclass(frozen=True, slots=True)
class Calibration:
    """How long the loop took: milliseconds on the wall clock and of CPU."""

    wall_ms: float
    cpu_ms: float

    @property
    def contention(self) -> float:
        """Wall over CPU: 1.0 on a quiet machine, 2.0 if half of the core went to others."""
        return self.wall_ms / self.cpu_ms

    @property
    def busy(self) -> bool:
        """Whether figures taken now should not be quoted."""
        return self.contention > _BUSY_ABOVE


def calibrate() -> Calibration:
    """Run the loop once (about 0.15 s)."""
    wall, cpu = time.perf_counter(), time.process_time()
    total = 0
    for number in range(_ROUNDS):
        total += number * number % 7
    return Calibration(
        (time.perf_counter() - wall) * 1e3, max((time.process_time() - cpu) * 1e3, 1e-3)
    )


def worse(one: Calibration, other: Calibration) -> Calibration:
    """Return the one that saw the busier machine."""
    return max(one, other, key=lambda calibration: calibration.contention)
