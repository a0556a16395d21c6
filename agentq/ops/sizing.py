"""How much of a machine some work needs, by the figures of `host/measured`: pure arithmetic.

steps a second     a day's, in its busiest hour
model slots        steps a second x model calls x seconds of each (Little's law)
cores              CPU a second of steps and calls, at half load: what comes in bursts must fit
broker             its CPU a second on one core, the runs at once, and all that are kept; twice,
                   since it forks to write its file
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from agentq.host import measured
from agentq.host.machine import Machine
from agentq.host.placement import RESERVE_FROM

TARGET = 0.5
"""The load of a core that is planned for: the other half is for bursts and for your own code."""
_FORK = 2
_CRITICAL_SHARE = 0.1
"""Of a run's steps: the first and the last of 20 are planned in pool critical."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is to be done."""

    runs: int
    """At once."""
    steps_per_day: int
    model_time: timedelta = timedelta(seconds=2)
    """One model call."""
    calls: float = 1.0
    """Model calls of a step."""
    peak: float = 3.0
    """The busiest hour beside the average one."""
    keep: timedelta = timedelta(days=7)
    """How long finished runs are kept (``runs.keep``)."""
    slots: int = 1000
    """Async steps of a process at once (``worker.slots``)."""


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """What it needs."""

    steps_per_second: float
    model_slots: int
    cores_per_model_slot: float
    """Worker cores that keep one slot of a model server busy."""
    worker_cores: float
    """CPU seconds a second of all workers."""
    broker_cores: float
    critical: int
    """Processes of an exclusive pool."""
    shared: int
    cores: int
    """Physical ones; below 8 the broker and the system share those of the workers."""
    worker_bytes: int
    broker_bytes: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether one machine is enough."""

    enough: bool
    reasons: tuple[str, ...]
    """A sentence for each thing that was compared."""


def size(work: Workload) -> Sizing:
    """Return what *work* needs."""
    rate = work.steps_per_day / 86_400 * work.peak
    call_s = work.model_time.total_seconds()
    slots = math.ceil(rate * work.calls * call_s)
    busy = rate * (measured.STEP_CPU_S + work.calls * measured.CALL_CPU_S)
    broker = rate * measured.BROKER_CPU_S
    in_hand = max(work.runs, slots)  # a run has a step in hand at least
    processes = max(2, math.ceil(busy / TARGET), math.ceil(in_hand / work.slots))
    critical = max(1, round(processes * _CRITICAL_SHARE))
    slot_bytes = measured.STEP_BYTES * measured.STEP_ROOM
    return Sizing(
        steps_per_second=rate,
        model_slots=slots,
        cores_per_model_slot=busy / slots if slots else 0.0,
        worker_cores=busy,
        broker_cores=broker,
        critical=critical,
        shared=processes - critical,
        cores=_with_system(max(processes, math.ceil((busy + broker) / TARGET))),
        worker_bytes=processes * measured.WORKER_BYTES + in_hand * slot_bytes,
        broker_bytes=_broker_bytes(work),
    )


def judge(needed: Sizing, machine: Machine) -> Verdict:
    """Return whether *machine* alone has what is needed."""
    have, memory = machine.physical_cores, machine.memory_bytes
    wanted = needed.worker_bytes + needed.broker_bytes
    ours = (
        (needed.cores <= have, f"cores: {needed.cores} needed, {have} here"),
        (wanted <= memory, f"memory: {wanted >> 20} MiB needed, {memory >> 20} MiB here"),
        (
            needed.broker_cores <= TARGET,
            f"broker: {needed.broker_cores:.0%} of its one core; over {TARGET:.0%} more cells",
        ),
    )
    rule = (
        f"the field's rule: below {measured.ONE_MACHINE_RUNS} runs at once and "
        f"{measured.ONE_MACHINE_STEPS:,} steps a day one machine is enough, unless a hop must take "
        "less than a millisecond"
    )
    return Verdict(
        enough=all(holds for holds, _ in ours),
        reasons=(*(f"{'yes' if holds else 'no'}: {text}" for holds, text in ours), rule),
    )


def _with_system(cores: int) -> int:
    """Return how many cores a machine must have, that an eighth may stay with the system."""
    return cores if cores < RESERVE_FROM else math.ceil(cores * 8 / 7)


def _broker_bytes(work: Workload) -> int:
    """Return the server's memory: what runs, what is kept, and as much again for its fork."""
    run_bytes = measured.RUN_BYTES / measured.STEPS_OF_RUN
    kept = work.steps_per_day * work.keep.total_seconds() / 86_400 * run_bytes
    running = work.runs * (measured.WAITING_RUN_BYTES + measured.RUN_BYTES)
    return round(_FORK * (kept + running))
