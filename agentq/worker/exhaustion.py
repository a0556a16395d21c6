"""Stops intake while this process is at a limit of the kernel's, and says so before it is.

    below 80 %   nothing
    80 %         a warning that names limit, use and remedy, once until it falls again
    met          (a step or the link to the broker failed for it) no more work is fetched, until use
                 is below 80 % again, or below 100 % with nothing here to give something back

What a step raises then is its own outcome: it may be tried again, and elsewhere. Completions still
go out, over links that exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentq.errors import LimitReached
from agentq.host.limits import FULL, Use, exhausted, fullest, uses

if TYPE_CHECKING:
    from agentq.worker.hands import Hands
    from agentq.worker.pump import Pump

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Between two looks; one takes about 0.3 ms."""


@contextmanager
def named() -> Iterator[None]:
    """Give an error that ends this worker the name of the limit that it comes from, if any.

    Raises:
        LimitReached: use, limit, whose it is and what raises it.
    """
    try:
        yield
    except LimitReached:
        raise
    except Exception as error:
        if exhausted(error) is None:
            raise
        raise LimitReached(f"this worker can not go on: {fullest(error)}") from error


class Exhaustion:
    """One per worker process; `met` may be called for any error."""

    def __init__(self, *, pump: Pump, hands: Hands) -> None:
        """Keep the parts."""
        self._pump = pump
        self._hands = hands
        self._held = ""
        """The name of the limit that intake waits for."""
        self._warned: set[str] = set()
        self.near = ""
        """In words, what was nearly used up at the last look; the lease's thread reads it."""

    def met(self, error: Exception) -> None:
        """Stop the intake where *error* comes from a limit; nothing else is done with it."""
        name = exhausted(error)
        if name is None or self._held:
            return
        self._held = name
        self._pump.suspend()
        logger.error(
            "%s; fetching no more work until it is below %.0f %%", fullest(error), 100 * FULL
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.round()
            await asyncio.sleep(LOOK_S)

    def round(self) -> None:
        """Look once."""
        try:
            found = uses()
        except OSError:  # no /proc: then only errors tell
            found = ()
        for use in found:
            self._warn(use)
        self.near = "; ".join(str(use) for use in found if use.share >= FULL)
        if self._held and self._free(found):
            logger.warning("%s: there is room again; fetching", self._held)
            self._held = ""
            self._pump.resume()

    def _free(self, found: tuple[Use, ...]) -> bool:
        enough = FULL if len(self._hands) else 1
        return all(use.share < enough for use in found if use.name.startswith(self._held))

    def _warn(self, use: Use) -> None:
        if use.share < FULL:
            self._warned.discard(use.name)
        elif use.name not in self._warned:
            self._warned.add(use.name)
            logger.warning("%s: %.0f %% in use; %s", use, 100 * use.share, use.remedy)
