"""The process that calls the chain: ``python -m agentq.ops.tune.callers COUNT PARENT``.

A fixed number of callers, each of which submits its next chain when it has the result of the last.
It ends with process PARENT, which started it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from agentq.host.parent import end_with_parent
from agentq.ops.tune.chain import WIDTH, aq, chain

_CALLERS = 16
_TIMEOUT = "60s"


@dataclass(frozen=True, slots=True)
class Called:
    """What the callers saw."""

    wall_s: float
    took_ms: list[float]
    """Of each chain, from submit to result."""


async def call(count: int) -> Called:
    """Run *count* chains.

    Raises:
        AgentQError: one failed.
        ValueError: one came out wrong.
    """
    left = iter(range(count))
    took: list[float] = []
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(_CALLERS, count)):
            group.create_task(_caller(left, took))
    wall = time.perf_counter() - began
    await aq.aclose()
    return Called(wall, took)


async def _caller(left: Iterator[int], took: list[float]) -> None:
    for _ in left:
        began = time.perf_counter()
        run = await chain.asubmit(WIDTH)
        result = await run.aresult(timeout=_TIMEOUT)
        took.append((time.perf_counter() - began) * 1000)
        if result != WIDTH * (WIDTH - 1):
            raise ValueError(f"a chain came out as {result}")


def main() -> None:
    """Call as many chains as the first argument says, and print what was seen as JSON."""
    end_with_parent(int(sys.argv[2]))
    seen = asyncio.run(call(int(sys.argv[1])))
    sys.stdout.write(json.dumps([seen.wall_s, seen.took_ms]) + "\n")


if __name__ == "__main__":
    main()
