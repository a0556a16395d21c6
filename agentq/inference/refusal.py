"""From an HTTP status and its headers to one of our errors."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx2
import orjson

from agentq.errors import (
    ModelAnswerInvalid,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
)

_SHOWN = 500  # characters of a server's own message that an error repeats
_NUMBER = re.compile(r"\s*\d+(\.\d+)?\s*")


async def raise_for_status(response: httpx2.Response, call: str) -> None:
    """Return when *response* is a 200; its body is left unread then.

    Raises:
        ModelRateLimited: 429. ModelTimeout: 408 or 504. ModelUnavailable: any other 5xx.
        ModelRefused: any other 4xx. ModelAnswerInvalid: any other status.
    """
    if response.status_code == HTTPStatus.OK:
        return
    reason = _reason(await response.aread())
    message = f"{call} answered {response.status_code}: {reason}"
    raise _error(response, message, call)


def retry_after(headers: httpx2.Headers, *, now: datetime) -> timedelta | None:
    """Return how long the server asks to stay away, from ``retry-after-ms`` or ``retry-after``.

    The latter is a number of seconds or a date; what is neither counts as absent.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if _NUMBER.fullmatch(value):
            return timedelta(seconds=float(value) * unit)
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(timedelta(0), date.replace(tzinfo=date.tzinfo or UTC) - now)


def _error(response: httpx2.Response, message: str, call: str) -> ModelError:
    status = response.status_code
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        wait = retry_after(response.headers, now=datetime.now(UTC))
        return ModelRateLimited(message, call=call, retry_after=wait)
    if status in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.GATEWAY_TIMEOUT}:
        return ModelTimeout(message, call=call)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ModelUnavailable(message, call=call)
    if status >= HTTPStatus.BAD_REQUEST:
        return ModelRefused(message, call=call)
    return ModelAnswerInvalid(message, call=call)


def _reason(content: bytes) -> str:
    """Return the message of an OpenAI-style error, else the start of the body as it is."""
    try:
        found = orjson.loads(content)
        error = found.get("error", found)
        reason = error if isinstance(error, str) else error["message"]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        reason = content.decode(errors="replace").strip() or "no reason given"
    return str(reason)[:_SHOWN]
