"""Celery's request under a stock pool: a death is no hand-back, and the broker's clock decides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import WorkerLostError
from celery.worker.request import Request as CeleryRequest

from agentq.broker import envelope, outbox


class Request(CeleryRequest):  # type: ignore[misc]
    """A message on its way through the pool."""

    def maybe_expire(self) -> bool:
        """Whether it is expired by the broker's clock: this machine's may be wrong.

        Celery's remembers its id as revoked; here a person may replay it.
        """
        if not self.expires:
            return False
        ahead = timedelta(milliseconds=self.message.ahead_ms)
        if datetime.now(UTC if self.expires.tzinfo else None) - ahead <= self.expires:
            return False
        self._keep(envelope.expired(self.message.headers))
        return True

    def _keep(self, reason: str) -> None:
        # Kept by the call that ends the task.
        self._context.__dict__[outbox.LETTER] = self.message.letter.dead(reason)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False  # noqa: FBT001, FBT002 -- Celery's
    ) -> Any:  # fmt: skip
        """Note that the process died, so that the hand-back is charged and a poison is given up."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, WorkerLostError | SystemExit):
            self.message.died = True
        return super().on_failure(exc_info, send_failed_event, return_ok)


class PlainRequest(Request):
    """A message of a plain Celery app, whose backend knows of no letters: the ack keeps them."""

    def _keep(self, reason: str) -> None:
        self.message.refused = reason

    def acknowledge(self) -> None:
        """End the delivery."""
        if self.message.refused:
            self.reject(requeue=False)
        else:
            super().acknowledge()
