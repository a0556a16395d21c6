"""Deletes blobs of runs that are gone: once an hour, by one worker for each place they lie in.

A run's blobs go when nothing can refer to them any more: its record has been dropped (`runs.keep`
behind its end), and the last of its dead letters that refers to one died longer than `dead.keep`
ago; or it never had a record, since its producer died before it was accepted. What was written
within `blobs.orphan_age` stays, whatever Redis says: whoever wrote it may be about to submit it.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery import signals

from agentq.blobs.reference import day_of
from agentq.errors import AgentQError
from agentq.host.limits import fullest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentq.flows.app import AgentQ

logger = logging.getLogger(__name__)

EVERY_S = 3600.0

MOST = 200
"""Runs that are asked for in one round trip."""


class BlobSweeper:
    """One per app; works in a thread of the worker, whichever pool it has."""

    def __init__(self, *, app: AgentQ) -> None:
        """Keep the parts; a worker of the app starts it when it is ready."""
        self._app = app
        self._told = threading.Event()
        self._thread: threading.Thread | None = None
        signals.worker_ready.connect(self._worker_ready)
        signals.worker_shutdown.connect(self._worker_stops)

    def _worker_ready(self, sender: Any = None, **_: Any) -> None:
        if getattr(sender, "app", None) is self._app.celery:
            self.start()

    def _worker_stops(self, **_: Any) -> None:
        self.stop()

    def start(self) -> None:
        """Sweep from now on; safe twice."""
        if self._thread is None and self._app.blobs.store is not None:
            self._told.clear()
            thread = threading.Thread(target=self._run, name="agentq-blob-sweeper", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                logger.warning("blobs are not swept by this worker: %s", fullest(error))
            else:
                self._thread = thread

    def stop(self) -> None:
        """Sweep no more; one that is under way ends with the process. Safe twice."""
        self._told.set()
        self._thread = None

    def round(self, *, now_s: float) -> int:
        """Sweep, unless somebody else did within the hour; return how many runs' blobs went.

        Raises:
            BrokerUnavailable: no answer in time; OSError: the store can not be read.
        """
        store, settings = self._app.blobs.store, self._app.settings
        if store is None or not self._is_my_turn(store.place):
            return 0
        before_s = now_s - settings.blobs.orphan_age.total_seconds()
        died_before_ms = int((before_s - settings.dead.keep.total_seconds()) * 1000)
        folders = store.folders(self._app.blobs.cell.id(), before=day_of(before_s))
        dropped = 0
        while some := list(islice(folders, MOST)):
            for folder in self._gone(some, died_before_ms):
                store.drop(folder)
                dropped += 1
        if dropped:
            logger.info("runs that are gone, whose blobs were deleted: %d", dropped)
        return dropped

    def _is_my_turn(self, place: str) -> bool:
        """Whether nobody has swept this place; a directory may be this machine's own."""
        store = self._app.store
        key = store.keys.blobs_swept(f"{socket.gethostname()}:{place}")
        answer = store.command("SET", key, "1", "NX", "PX", int(EVERY_S * 900))
        return answer is not None

    def _gone(self, folders: Sequence[str], died_before_ms: int) -> list[str]:
        """Return those whose run has no record, nor a dead letter that refers to a blob."""
        store = self._app.store
        runs = [folder.rpartition("/")[2] for folder in folders]
        records = store.pipeline([("EXISTS", store.keys.run(run)) for run in runs])
        died = store.pipeline([("GET", store.keys.blobs_kept(run)) for run in runs])
        gone = [
            (folder, run)
            for folder, run, record, ms in zip(folders, runs, records, died, strict=True)
            if record == 0 and int(ms or 0) < died_before_ms
        ]
        if gone:
            store.command("UNLINK", *(store.keys.blobs_kept(run) for _, run in gone))
        return [folder for folder, _ in gone]

    def _run(self) -> None:
        try:
            # Early: what a failover may lose is what is new.
            self._app.blobs.cell.id()
        except AgentQError as error:
            logger.debug("%s", error)
        # A fleet that starts together does not sweep together.
        while not self._told.wait(EVERY_S * random.uniform(0.25, 0.75)):  # noqa: S311 -- jitter
            try:
                self.round(now_s=time.time())
            except (AgentQError, OSError) as error:
                logger.warning("blobs are not swept: %s", error)
            except Exception:  # the store may be the user's own
                logger.exception("blobs are not swept")
