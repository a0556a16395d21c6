"""Typed settings in layers: defaults < TOML files < environment < overrides."""

from agentq.settings.explain import Explained, explain
from agentq.settings.load import load_settings
from agentq.settings.model import Pool, Settings

__all__ = ["Explained", "Pool", "Settings", "explain", "load_settings"]
