"""What the tracers of one worker process share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ
    from agentq.store.multiplexer import Multiplexer
    from agentq.timing.deadline import BrokerClock
    from agentq.worker.joined import JoinReader
    from agentq.worker.sidecar import TaskEvents
    from agentq.worker.threads import Threads


class CpuRunner(Protocol):
    """Where steps of kind="cpu" run."""

    async def run(self, task: Any, arguments: list[Any], *, begins: Callable[[], None]) -> Any:
        """Run a step's function; *begins* is called when there is a place for it."""
        ...


@dataclass(slots=True)
class Parts:
    """What tracers share."""

    app: AgentQ
    hostname: str
    cell: Multiplexer
    clock: BrokerClock
    threads: Threads
    processes: CpuRunner
    joins: JoinReader
    events: TaskEvents
    jitter: Callable[[], float] = random.random
