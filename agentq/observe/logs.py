"""What a process says, as `settings.log` wants it: lines for people, or one JSON object a line."""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import orjson

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_AT_LEAST = {  # what libraries say below this is about themselves
    "celery": logging.INFO,
    **dict.fromkeys(("kombu", "amqp", "asyncio", "httpx2", "httpcore2"), logging.WARNING),
}


class JsonLines(logging.Formatter):
    """One object a line: time (RFC 3339, UTC), level, logger, message, process, and error."""

    converter = staticmethod(time.gmtime)

    def __init__(self, *, process: str = "") -> None:
        """Name the *process* in every line."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        fields: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            fields["process"] = self._process
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return orjson.dumps(fields, default=str).decode()


def configure(level: str, form: Literal["text", "json"], *, process: str = "") -> None:
    """Send every logger's records of *level* and above to standard error; safe twice.

    Args:
        level: a level's name; libraries that report each call are heard from WARNING on.
        form: ``text`` or ``json``.
        process: who speaks, e.g. ``shared-0@host``.
    """
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        formatter: logging.Formatter = JsonLines(process=process)
    else:
        formatter = logging.Formatter(f"{process} {_TEXT}" if process else _TEXT)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name, least in _AT_LEAST.items():
        logging.getLogger(name).setLevel(max(least, logging.getLogger().level))
