"""Says which step blocks the event loop, while it does.

A step that computes or waits without `await` stops all others of its process. The loop can not tell
so itself: a thread looks whether it moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.worker.delivery import Delivery
    from agentq.worker.hands import Hands

logger = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""How long the loop may stand still before a person is told."""

_LOOK_S = 0.25


class LoopWatch:
    """Watches the loop of the thread that makes it, from `start` to `stop`."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, hands: Hands) -> None:
        """Keep the parts."""
        self._loop = loop
        self._hands = hands
        self._watched = threading.get_ident()
        self._beat = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; safe twice."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="agentq-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End; safe twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
            self._thread = None

    def beat(self) -> None:
        """Say that the loop moves; called by the loop several times a second."""
        self._beat = time.monotonic()

    def _run(self) -> None:
        told = 0.0
        while not self._stop.wait(_LOOK_S):
            beat = self._beat
            still = time.monotonic() - beat
            if beat != told and still > PATIENCE_S:
                told = beat  # once for each standstill
                # What runs changes while it is looked at: the loop moves again.
                with contextlib.suppress(RuntimeError):
                    self._warn(still)

    def _warn(self, still: float) -> None:
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001 -- documented by Python
        if task is None or frame is None or task.get_name().startswith("agentq-"):
            return  # a stopped process, or a service of the worker's own
        found = [one for one in self._hands.active if one.id == task.get_name()]
        delivery = found[0] if found else None
        logger.warning(
            "%s blocks the event loop, for %.1f s now, at %s: nothing else of this worker runs "
            "meanwhile; await what it waits for, or make it a plain def (a thread) or "
            'kind="cpu" (a process)',
            _named(delivery), still, _place(delivery, frame),
        )  # fmt: skip


def _named(delivery: Delivery | None) -> str:
    if delivery is None:
        return "what a step has started (a coroutine of its own)"
    if delivery.run:
        return f"step {delivery.task.name!r} of run {delivery.run}"
    return f"task {delivery.task.name!r} ({delivery.id})"


def _place(delivery: Delivery | None, frame: FrameType) -> str:
    """Return file and line in the step's own module, else the innermost."""
    module: Any = sys.modules.get(delivery.task.__module__) if delivery is not None else None
    own = getattr(module, "__file__", None)
    at: FrameType | None = frame
    while at is not None and at.f_code.co_filename != own:
        at = at.f_back
    at = at or frame
    return f"{at.f_code.co_filename}:{at.f_lineno}"
