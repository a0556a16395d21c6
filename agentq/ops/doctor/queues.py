"""What waits in the cell: how much of its room is taken, since when, and what keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from agentq.clock import format_duration, milliseconds
from agentq.ops.doctor.facts import Facts
from agentq.ops.doctor.finding import Finding, error, note, warning
from agentq.ops.doctor.machine import FULL
from agentq.ops.replies import scored
from agentq.ops.units_here import start
from agentq.store.client import Store

OLD = timedelta(minutes=5)
"""An agent's run has mostly ended by then."""

FORGOTTEN = timedelta(hours=1)
"""A pause that is older was meant to be lifted."""

OVERDUE = timedelta(seconds=30)
"""Workers promote several times a second."""


def depth(facts: Facts) -> Iterator[Finding]:
    """Find queues that are nearly full, and work that has waited long."""
    most = facts.settings.broker.max_length
    for queue in facts.cell.queues:
        name = f"{queue.pool}:{queue.lane}"
        if queue.waiting > FULL * most:
            finding = error if queue.waiting >= most else warning
            yield finding(
                "queues.depth", f"{queue.waiting:,} of {most:,} messages wait in {name}",
                why="a full one refuses new runs (QueueFull)",
                remedy=f"more workers: processes under [pools.{queue.pool}], or agentq purge "
                f"--pool {queue.pool}; broker.max_length only makes the wait longer",
            )  # fmt: skip
        if queue.oldest_ms is not None and queue.oldest_ms > milliseconds(OLD):
            yield warning(
                "queues.age",
                f"the first of {queue.waiting:,} in {name} has waited for {_said(queue.oldest_ms)}",
                why="work arrives faster than it is done, or nobody does it",
                remedy="agentq status names the workers and pauses; agentq why RUN the reason",
            )


def size(store: Store, facts: Facts) -> Iterator[Finding]:
    """Find queues whose messages are nearly as large as they may be."""
    most = facts.settings.broker.max_bytes
    streams = [(one, store.keys.stream(one.pool, one.lane)) for one in facts.cell.queues]
    answers = store.pipeline([("MEMORY", "USAGE", key, "SAMPLES", 100) for _, key in streams])
    for (queue, _), answer in zip(streams, answers, strict=True):
        used = 0 if isinstance(answer, Exception) else int(answer or 0)
        if used > FULL * most:
            yield warning(
                "queues.bytes",
                f"{queue.pool}:{queue.lane} holds {used / 2**20:,.1f} of {most / 2**20:,.1f} MB",
                why="a full one refuses new runs (QueueFull, reason bytes)",
                remedy="a smaller broker.max_payload, so that large arguments go to [blobs]; or "
                f"more workers: processes under [pools.{queue.pool}]",
            )


def stopped(facts: Facts) -> Iterator[Finding]:
    """Find pauses, and work whose code no worker has."""
    for pause in facts.cell.pauses:
        finding = warning if pause.for_ms > milliseconds(FORGOTTEN) else note
        yield finding(
            "queues.paused",
            f"{pause.kind} {pause.name} is paused for {_said(pause.for_ms)}, {pause.aside} put "
            "aside",
            why="nothing of it starts",
            remedy=f"agentq resume {pause.kind} {pause.name}",
        )
    for parked in facts.cell.parked:
        limit = format_duration(facts.settings.broker.park_limit)
        yield warning(
            "queues.parked",
            f"{parked.count} wait for {parked.lacking} for {_said(parked.for_ms)}",
            why=f"no worker has that code; after {limit} (broker.park_limit) they are dead letters",
            remedy="roll out the build that has it, or agentq purge --step NAME",
        )


def retries(facts: Facts) -> Iterator[Finding]:
    """Say which pools' retries wait for their budget."""
    for pool, count in facts.cell.retries.items():
        yield note(
            "queues.retries",
            f"{count:,} retries of pool {pool} wait for its budget",
            why="what they call fails more often than it should: they are spread over time",
            remedy="agentq status, and the worker's log for the error; budget and per_second under "
            "[retry]",
        )


def dead(facts: Facts) -> Iterator[Finding]:
    """Find dead letters, and their room running out."""
    kept, limits = facts.cell.dead, facts.settings.dead
    if kept.number > FULL * limits.max_number or kept.bytes > FULL * limits.max_bytes:
        yield warning(
            "queues.dead", str(kept),
            why="the oldest are dropped for new ones, unread",
            remedy="agentq dead list; then agentq dead replay or agentq dead drop",
        )  # fmt: skip
    elif kept.number:
        yield note(
            "queues.dead", str(kept),
            why="each is work that was accepted and did not run",
            remedy="agentq dead list; then agentq dead replay or agentq dead drop",
        )  # fmt: skip


def delayed(store: Store, facts: Facts) -> Iterator[Finding]:
    """Find delayed work that nobody brings back when it is due."""
    most = facts.settings.broker.max_length
    if facts.cell.delayed > FULL * most:
        yield warning(
            "queues.delayed",
            f"{facts.cell.delayed:,} messages are delayed; of one queue there may be {most:,}",
            why="a full one refuses new runs that are delayed (QueueFull, reason delayed)",
            remedy="fewer countdown= and retries; agentq status shows what is parked",
        )
    now, first = store.pipeline([("TIME",), ("ZRANGE", store.keys.delayed(), 0, 0, "WITHSCORES")])
    for _, due in scored(first):
        late = int(now[0]) * 1000 - int(due)
        if late > milliseconds(OVERDUE):
            yield warning(
                "queues.delayed",
                f"delayed work is overdue for {_said(late)}",
                why="workers bring it back into its queue: none that lives does",
                remedy=start(),
            )


def _said(ms: int) -> str:
    """Return a duration as people say it, rounded down."""
    seconds = ms // 1000
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
