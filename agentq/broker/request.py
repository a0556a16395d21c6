"""Celery's request under a stock pool, which tells a death of its process from a hand-back."""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import WorkerLostError
from celery.worker.request import Request as CeleryRequest


class Request(CeleryRequest):  # type: ignore[misc]
    """A message on its way through the pool."""

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False  # noqa: FBT001, FBT002 -- Celery's
    ) -> Any:  # fmt: skip
        """Note that the process died, so that the hand-back is charged and a poison is given up."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, WorkerLostError):
            self.message.died = True
        return super().on_failure(exc_info, send_failed_event, return_ok)
