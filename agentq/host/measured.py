"""What agentq costs, as measured in this repository: the one place that plans take figures from.

One run of `agentq bench shares` on 2 shared cores (AMD EPYC, Python 3.11, Valkey 9.1); run it on
your machine and compare. What your own steps compute and keep comes on top, and is not in here.
"""

from __future__ import annotations

STEP_CPU_S = 63e-6
"""Worker CPU of a step of a run."""

BROKER_CPU_S = 38e-6
"""The server's CPU of a step of a run."""

CALL_CPU_S = 5.2e-3
"""Worker CPU of a model call whose reply comes in 128 pieces."""

WORKER_BYTES = 94 * 2**20
"""Resident memory of an idle worker."""

CHILD_BYTES = 50 * 2**20
"""Resident memory of a process for steps of kind="cpu", the demo's modules imported."""

STEP_BYTES = 6 * 2**10
"""Worker memory of a step that waits."""

STEP_ROOM = 16
"""A planned slot has so many times STEP_BYTES, 96 KB: a prompt and its reply of 10,000 tokens each.

Chosen, not measured: what a step keeps is its own.
"""

WAITING_RUN_BYTES = 4_200
"""The server's memory of a run whose first step waits."""

RUN_BYTES = 17_000
"""The server's memory of a run of 20 steps that is done: its record, events and results."""

STEPS_OF_RUN = 20
"""What RUN_BYTES is of."""

ONE_MACHINE_RUNS, ONE_MACHINE_STEPS = 500, 1_000_000
"""Runs at once and steps a day below which one machine is enough: the field's rule, not ours."""
