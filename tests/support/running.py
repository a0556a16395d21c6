"""An app as a test sees it: imported as a producer, with workers of its own in other processes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

from tests.support.ledger import VARIABLE, Ledger
from tests.support.worker_process import WorkerProcess

BOTH_POOLS = ("-Q", "critical,shared")


class Running:
    """The producer's side of one app and its workers."""

    def __init__(self, module: str, variables: dict[str, str], stack: ExitStack) -> None:
        self.ledger = Ledger.at(variables[VARIABLE])
        self.variables = variables
        self._module = module
        self._stack = stack
        self.app = self._imported()

    def worker(
        self,
        name: str = "w",
        *,
        options: tuple[str, ...] = BOTH_POOLS,
        inside: tuple[str, ...] = (),
    ) -> WorkerProcess:
        """Start one more worker, *inside* a `Machine`; it ends with the test."""
        worker = self.new_worker(name, options=options, inside=inside)
        worker.start()
        return worker

    def new_worker(
        self,
        name: str = "w",
        *,
        options: tuple[str, ...] = BOTH_POOLS,
        inside: tuple[str, ...] = (),
    ) -> WorkerProcess:
        """Return one that is still to be started."""
        worker = WorkerProcess(
            f"{self._module}:app", options=("-n", f"{name}@test", *options), env=self.variables,
            inside=inside,
        )  # fmt: skip
        self._stack.callback(worker.close)
        return worker

    def _imported(self) -> ModuleType:
        sys.modules.pop(self._module, None)
        return importlib.import_module(self._module)


@contextmanager
def running(module: str, url: str, ledger: Ledger, **settings: str) -> Iterator[Running]:
    """Import *module* for the broker at *url*; *settings* are variables without ``AGENTQ_``."""
    variables = {f"AGENTQ_{key}": value for key, value in settings.items()}
    variables.setdefault("AGENTQ_BLOBS__DIRECTORY", str(ledger.path.parent / "blobs"))
    variables |= {"AGENTQ_ENV": "test", "AGENTQ_BROKER__URL": url, VARIABLE: str(ledger.path)}
    before = dict(os.environ)
    os.environ |= variables
    try:
        with ExitStack() as stack:
            yield Running(module, variables, stack)
    finally:
        os.environ.clear()
        os.environ.update(before)
