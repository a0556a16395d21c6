"""Processes of a plan, with what a test does not care for left at something plain."""

from __future__ import annotations

from typing import Any

from agentq.host.plan import Broker, Plan, Process


def planned(pool: str, cores: tuple[int, ...], **other: Any) -> Process:
    """Return process 0 of *pool*."""
    plain: dict[str, Any] = {
        "children": (), "node": None, "slots": 100, "threads": 16, "memory_bytes": 1 << 29,
        "open_files": 1000, "tasks": 50, "reason": "why",
    }  # fmt: skip
    return Process(pool=pool, index=0, cores=cores, **{**plain, **other})


def plan_of(*processes: Process) -> Plan:
    """Return a plan of these alone."""
    broker = Broker(cores=(), node=None, reason="why")
    return Plan(processes=processes, reserved=(), idle=(), broker=broker, needs=(), findings=())
