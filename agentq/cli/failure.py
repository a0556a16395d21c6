"""How an error is printed: one clear line, or JSON for a script."""

from __future__ import annotations

import sys

from agentq.errors import AgentQError

FAILED = 1
WRONG_USAGE = 2


def report(error: AgentQError, *, as_json: bool) -> int:
    """Print *error* and return the exit code.

    As JSON it goes to standard output: ``{"error": {"kind": "QueueFull", "message": ...}}``, with
    the error's own fields (durations in seconds) beside them.
    """
    if as_json:
        import orjson

        fields = {
            key: _plain(value) for key, value in vars(error).items() if not key.startswith("_")
        }
        body = {**fields, "kind": type(error).__name__, "message": str(error)}
        sys.stdout.write(orjson.dumps({"error": body}, default=str).decode() + "\n")
    else:
        sys.stderr.write(f"agentq: {error}\n")
    return FAILED


def report_usage(message: str) -> int:
    """Print what is wrong with the arguments as JSON, and return the exit code."""
    import orjson

    body = {"kind": "UsageError", "message": message}
    sys.stdout.write(orjson.dumps({"error": body}).decode() + "\n")
    return WRONG_USAGE


def _plain(value: object) -> object:
    seconds = getattr(value, "total_seconds", None)
    return seconds() if seconds else value
