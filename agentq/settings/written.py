"""How a setting's value is written in TOML."""

from __future__ import annotations

import json
from datetime import timedelta

from agentq.clock import format_duration


def written(value: object) -> str:
    """Return *value* as TOML; None, which TOML lacks, is an empty string."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case timedelta():
            return f'"{format_duration(value)}"'
        case list() | tuple():
            return f"[{', '.join(written(item) for item in value)}]"
        case int():
            return str(value)
        case _:
            return json.dumps(str(value), ensure_ascii=False)  # TOML's basic string is JSON's
