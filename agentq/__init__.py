"""agentq: multi-agent runs on Celery and Redis or Valkey.

The public names, loaded when first used, so that a command that needs one does not pay for all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from agentq.broker.register import register

if TYPE_CHECKING:
    from agentq import errors
    from agentq.broker.context import Context
    from agentq.flows.app import AgentQ
    from agentq.flows.builder import each
    from agentq.outcome import Err, Ok
    from agentq.runs.handle import RunHandle
    from agentq.settings import Settings, load_settings

__version__ = "0.1.0"

__all__ = [
    "AgentQ",
    "Context",
    "Err",
    "Ok",
    "RunHandle",
    "Settings",
    "each",
    "errors",
    "load_settings",
]

register()

_HOMES = {
    "AgentQ": "agentq.flows.app",
    "Context": "agentq.broker.context",
    "Err": "agentq.outcome",
    "Ok": "agentq.outcome",
    "RunHandle": "agentq.runs.handle",
    "Settings": "agentq.settings",
    "each": "agentq.flows.builder",
    "load_settings": "agentq.settings",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("agentq.errors")
    if home := _HOMES.get(name):
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'agentq' has no attribute {name!r}")
