"""What the tracers of one worker process share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ
    from agentq.store.multiplexer import Multiplexer
    from agentq.timing.deadline import BrokerClock
    from agentq.worker.joined import JoinReader
    from agentq.worker.processes import Processes
    from agentq.worker.sidecar import TaskEvents
    from agentq.worker.threads import Threads


@dataclass(slots=True)
class Parts:
    """What tracers share."""

    app: AgentQ
    hostname: str
    cell: Multiplexer
    clock: BrokerClock
    threads: Threads
    processes: Processes
    joins: JoinReader
    events: TaskEvents
    jitter: Callable[[], float] = random.random
