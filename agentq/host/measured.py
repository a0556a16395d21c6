"""What agentq costs, as measured in this repository: the one place that plans take figures from.

Each says the command that prints it; on another machine run that and compare.
"""

from __future__ import annotations

WORKER_BYTES = 100 * 2**20
"""Resident memory of an idle worker with its app: `agentq status` and `agentq bench` (fleet)."""

CHILD_BYTES = 60 * 2**20
"""Resident memory of a process for steps of kind="cpu", imports included."""

STEP_BYTES = 12 * 1024
"""Worker memory of one step that waits: `agentq bench`, 5,000 steps that sleep 1 s."""

STEP_ROOM = 8
"""A planned slot has this many times STEP_BYTES: what a step itself keeps is not ours to measure.

96 KB hold a prompt and its reply of some 10,000 tokens each.
"""
