"""Makes `agentq://` known to kombu and Celery, which have no entry points for transports.

Importing kombu costs more than many a command that imports agentq does, so what is not imported
yet is told when it is: a finder waits for the two modules that hold the tables.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_TABLES = {
    "kombu.transport": ("TRANSPORT_ALIASES", "agentq.broker.transport:Transport"),
    "celery.app.backends": ("BACKEND_ALIASES", "agentq.broker.backend:PlainBackend"),
}
_SCHEME = "agentq"


def register() -> None:
    """Enter our scheme in both tables, now or when they are imported; safe twice."""
    for name in _TABLES:
        if module := sys.modules.get(name):
            _enter(module)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _enter(module: ModuleType) -> None:
    table, target = _TABLES[module.__name__]
    # `agentq+tls` and the like reach kombu and Celery as `agentq`, with the rest in the URL.
    getattr(module, table)[_SCHEME] = target


class _Finder(MetaPathFinder):
    """Finds only the modules that hold the tables, by asking the finders behind it."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None  # noqa: ARG002
    ) -> ModuleSpec | None:  # fmt: skip
        if fullname not in _TABLES or self._asking:
            return None
        self._asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads a module as *inner* does, then enters our scheme in it."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        _enter(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)  # resources, source: whatever else a loader is asked
