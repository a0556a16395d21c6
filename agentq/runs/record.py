"""A run as it is kept: its states, and what its record and events say.

    running --> done       the last step returned
            --> failed     a step failed for good
            --> cancelled  somebody asked for it
            --> expired    its deadline passed
The first end stands; nothing of an ended run is started or accepted. A run behind its deadline is
expired, whether or not a worker has come by to write that down.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import orjson

REFERS = b"@"
"""What the result of a run begins with where it is a reference to a blob: no JSON does."""


class RunState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self is not RunState.RUNNING


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What is known of a run."""

    id: str
    state: RunState
    flow: str
    submitted: datetime
    ended: datetime | None
    deadline: datetime | None
    key: str | None = None
    tenant: str | None = None
    result: bytes = field(default=b"null", repr=False)
    """JSON: the value of a run that is done, what is known of the failure of a failed one."""

    @property
    def reference(self) -> str | None:
        """Return the reference to the blob that the value is, None where `result` has it."""
        return self.result[len(REFERS) :].decode() if self.result.startswith(REFERS) else None

    @property
    def ends_by_time(self) -> bool:
        """Whether only the broker's clock says if it has ended: it runs and has a deadline."""
        return self.state is RunState.RUNNING and self.deadline is not None

    def at(self, now: datetime) -> RunStatus:
        """Return it as it is at *now*, on the broker's clock: expired behind the deadline."""
        if self.ends_by_time and self.deadline is not None and now > self.deadline:
            return replace(self, state=RunState.EXPIRED, ended=self.deadline)
        return self

    @property
    def took(self) -> timedelta | None:
        """Return how long it took, None while it runs."""
        return self.ended - self.submitted if self.ended else None


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One entry of a run's event stream; `id` is where a reader goes on after a break."""

    id: str
    kind: str
    """``step``, ``retry``, ``fanout``, ``progress``, ``end``, or a name of the user's."""
    data: Any


def run_id_of(flow: str, key: str, tenant: str | None) -> str:
    """Return the id of the run that *key* stands for: the same key is the same run."""
    text = "\0".join((tenant or "", flow, key))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def status_of(run_id: str, fields: dict[bytes, bytes]) -> RunStatus:
    """Read a run's record."""
    record = orjson.loads(fields.get(b"record") or b"{}")
    ended = int(fields.get(b"ended") or 0)
    deadline = int(fields.get(b"deadline") or 0)
    return RunStatus(
        id=run_id,
        state=RunState(fields[b"state"].decode()),
        flow=record.get("flow", ""),
        submitted=_instant(int(fields[b"at"])),
        ended=_instant(ended) if ended else None,
        deadline=_instant(deadline) if deadline else None,
        key=record.get("key"),
        tenant=record.get("tenant"),
        result=fields.get(b"result", b"null"),
    )


def events_of(entry_id: bytes, fields: dict[bytes, bytes]) -> list[RunEvent]:
    """Read one entry of a run's events: one event, or a run's last step and its end."""
    id_ = entry_id.decode()
    events = [RunEvent(id_, fields[b"e"].decode(), orjson.loads(fields[b"d"]))]
    if end := fields.get(b"x"):
        events.append(RunEvent(id_, "end", orjson.loads(end)))
    return events


def instant_of(answer: tuple[int, int]) -> datetime:
    """Return what the broker's TIME answered: seconds, microseconds."""
    return _instant(int(answer[0]) * 1000 + int(answer[1]) // 1000)


def _instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
