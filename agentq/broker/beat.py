"""Celery beat whose tasks have an id of their entry and due time: two beats submit each once.

The id's slot is the interval's (or, for crontabs, the minute's) number since the epoch. One beat
fires at most once a slot, since it waits at least an interval; two beats that fire in the same slot
publish the same id, and the broker accepts an id once (`broker.dedupe_ttl`).
"""

from __future__ import annotations

from copy import copy
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from celery.beat import PersistentScheduler
from celery.schedules import schedule

_MINUTE_S = 60.0


def task_id(name: str, interval_s: float, now: datetime) -> str:
    """Return the id of entry *name*'s task in the slot that *now* lies in."""
    slot = int(now.timestamp() // interval_s)
    return str(uuid5(NAMESPACE_URL, f"agentq:beat:{name}:{interval_s:g}:{slot}"))


class Scheduler(PersistentScheduler):  # type: ignore[misc]
    """`beat_scheduler = "agentq.broker.beat:Scheduler"`."""

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **options: Any  # noqa: FBT001, FBT002 -- Celery's
    ) -> Any:  # fmt: skip
        """Publish *entry*'s task under the id of its slot, unless its options name one."""
        if advance:
            entry = self.reserve(entry)
        due = copy(entry)
        # When it was found due: no two of these lie closer together than the interval.
        moment = getattr(self.schedule.get(entry.name), "last_run_at", None) or self.app.now()
        name = task_id(entry.name, _interval_s(entry.schedule), moment)
        due.options = {"task_id": name, **entry.options}
        return super().apply_async(due, producer=producer, advance=False, **options)


def _interval_s(timing: Any) -> float:
    # Crontabs and the sun count as schedules too, but know no interval.
    if type(timing) is schedule:
        return max(float(timing.run_every.total_seconds()), 0.001)
    return _MINUTE_S
