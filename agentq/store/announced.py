"""The names of the tasks and flows that a worker has, written into its record.

Once with each lease, by plain commands of the lease's thread: no step waits for it. `ops.known`
reads them, so that a name which nobody has can be told from one that is only slow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import orjson

from agentq.errors import BrokerUnavailable
from agentq.store.client import Store

logger = logging.getLogger(__name__)

FIELD = "names"
"""Of a worker's record: ``{"tasks": [...], "flows": [...]}``."""
CELERYS_OWN = "celery."
"""How the names of tasks begin that every worker has; they are left out."""
MOST_BYTES = 32_768
"""Some 700 names. A worker that has more says nothing, and then no name is said to be unknown."""

_KEPT_MS = 86_400_000  # as `renew` keeps the record, which may have been deleted meanwhile


def names(tasks: Iterable[str], flows: Iterable[str]) -> bytes:
    """Return what a worker that has *tasks* and *flows* announces; empty where it is too much."""
    ours = sorted(task for task in tasks if not task.startswith(CELERYS_OWN))
    said = orjson.dumps({"tasks": ours, "flows": sorted(flows)})
    return said if len(said) <= MOST_BYTES else b""


def announce(store: Store, worker: str, said: bytes) -> bool:
    """Write what `names` returned into the record of *worker*; False: try again later."""
    if not said:
        return True
    record = store.keys.worker(worker)
    answers: list[Any]
    try:
        answers = store.pipeline([("HSET", record, FIELD, said), ("PEXPIRE", record, _KEPT_MS)])
    except BrokerUnavailable as error:  # a full one too
        answers = [error]
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    if refused:
        logger.debug("the names that %s has are not announced: %s", worker, refused[0])
    return not refused
