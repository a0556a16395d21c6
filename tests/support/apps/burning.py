"""Steps that compute on the loop, and steps that wait until a file says so."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from agentq import AgentQ
from tests.support.ledger import VARIABLE, note

aq = AgentQ("burning")
app = aq.celery

_running = 0


def release_file() -> Path:
    """Where it is, the steps that wait end."""
    return Path(os.environ[VARIABLE]).with_name("release")


@aq.step(retries=0)
async def burn(number: int) -> None:
    """Compute for 50 ms, 2 ms at a time; note how many do."""
    global _running  # noqa: PLW0603 -- one loop counts
    _running += 1
    note("burns", number, _running)
    for _ in range(25):
        end = time.process_time() + 0.002
        while time.process_time() < end:
            pass
        await asyncio.sleep(0)
    _running -= 1


@aq.step(retries=0)
async def wait(number: int) -> None:
    note("waits", number)
    while not release_file().exists():  # noqa: ASYNC110 -- another process makes it
        await asyncio.sleep(0.1)


burns = aq.flow("burn", burn)
waits = aq.flow("wait", wait)
