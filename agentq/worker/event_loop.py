"""Which event loop a worker runs on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agentq.extras import pip_install

logger = logging.getLogger(__name__)


def loop_factory(kind: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes a loop of *kind*, uvloop or asyncio; asyncio's where uvloop is missing."""
    if kind == "uvloop":
        try:
            import uvloop  # noqa: PLC0415 -- an extra
        except ImportError:
            logger.warning("uvloop is not installed, using asyncio; %s", pip_install("worker"))
        else:
            return uvloop.new_event_loop
    return asyncio.new_event_loop
