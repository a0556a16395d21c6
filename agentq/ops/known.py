"""Which names of steps and flows the living workers of a cell have, as far as they say it.

What nobody has may be a slip of the pen or a step of tomorrow's release: it is told, not refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import orjson

from agentq.ops.replies import scored
from agentq.store.announced import CELERYS_OWN, FIELD

if TYPE_CHECKING:
    from agentq.store.client import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the living workers have; Celery's own tasks are left out."""

    steps: frozenset[str] = frozenset()
    """With their modules; a plain Celery app's tasks too."""
    flows: frozenset[str] = frozenset()
    workers: int = 0
    silent: int = 0
    """Of these, how many do not say it: an older build, or too many names."""

    def has(self, kind: str, name: str) -> bool:
        """Whether a worker says that it has it."""
        return name in self._of(kind) or (kind == "step" and name.startswith(CELERYS_OWN))

    def lacks(self, kind: str, name: str) -> str | None:
        """Return in words that no worker has it; None where one has, or where it is not known.

        Nor of another *kind* than ``step`` and ``flow``: workers do not say what else there is.
        """
        if kind not in {"step", "flow"} or not self.workers or self.silent or self.has(kind, name):
            return None
        return f"no worker has {kind} {name!r}{meant(name, self._of(kind))}"

    def _of(self, kind: str) -> frozenset[str]:
        return {"step": self.steps, "flow": self.flows}.get(kind, frozenset())


def read_known(store: Store) -> Known:
    """Return what the living workers say, in two round trips.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    keys = store.keys
    now, leases = store.pipeline([("TIME",), ("ZRANGE", keys.workers(), 0, -1, "WITHSCORES")])
    living = [name.decode() for name, until in scored(leases) if until > int(now[0]) * 1000]
    records = store.pipeline([("HMGET", keys.worker(name), "report", FIELD) for name in living])
    # Flower and `celery events` hold a lease and take no work.
    said = [said for report, said in records if orjson.loads(report or b"{}").get("pools")]
    heard = [orjson.loads(one) for one in said if one]
    return Known(
        steps=frozenset(name for one in heard for name in one["tasks"]),
        flows=frozenset(name for one in heard for name in one["flows"]),
        workers=len(said),
        silent=len(said) - len(heard),
    )


def meant(name: str, known: Collection[str]) -> str:
    """Return ``; did you mean ...?`` where one of *known* is near to *name*, else nothing."""
    near = get_close_matches(name, known, n=1) or [one for one in known if one.endswith(f".{name}")]
    return f"; did you mean {near[0]}?" if near else ""
