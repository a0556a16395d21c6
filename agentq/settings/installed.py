"""Whether `agentq deploy install` has put units on this machine: remedies differ there."""

from __future__ import annotations

from pathlib import Path

RECORD = "etc/agentq/deploy.json"
"""What it leaves, below the root."""
ROOT = Path("/")


def has_units() -> bool:
    """Whether agentq's units are installed here."""
    return (ROOT / RECORD).exists()


def whose_broker() -> str:
    """Return where to find the broker of this machine's units, as the end of an error; else ""."""
    if not has_units():
        return ""
    return "; this machine's units have one: as root (sudo) this command finds it"
