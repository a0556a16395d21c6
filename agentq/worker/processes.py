"""Processes for steps of kind="cpu": started before work comes, one step at a time in each.

They come from a fork server: a fork of a process with uvloop and threads hangs. Each has an
executor of its own, so that a step behind its deadline can be ended by ending its process, and
only that.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any

from agentq.errors import WorkerLost
from agentq.worker.contained import guarded

logger = logging.getLogger(__name__)


def _call(module: str, name: str, arguments: list[Any]) -> Any:
    """Run a step's function in the child, found by name: the module's attribute is its task."""
    target: Any = import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return guarded(target.step.function, *arguments)


def _warm(modules: list[str]) -> bool:
    """Import the step modules, so that the first step does not wait for them."""
    for module in modules:
        import_module(module)
    return True


class Processes:
    """A fixed number of single-step processes; none is started before `start`."""

    def __init__(self, *, count: int, modules: list[str]) -> None:
        """Take how many, and what to import in each."""
        self._count = count
        self._modules = modules
        self._context = multiprocessing.get_context("forkserver")
        self._free: asyncio.Queue[ProcessPoolExecutor] = asyncio.Queue()
        self._all: set[ProcessPoolExecutor] = set()

    async def start(self) -> None:
        """Start and warm the processes; safe twice."""
        while len(self._all) < self._count:
            self._free.put_nowait(await self._new())

    async def stop(self) -> None:
        """End the processes; safe twice."""
        for executor in self._all:
            self._end(executor)
        self._all.clear()
        self._free = asyncio.Queue()

    async def run(self, task: Any, arguments: list[Any], *, begins: Callable[[], None]) -> Any:
        """Run a step's function in a free process; cancelled, its process ends with it.

        *begins* is called when there is one.

        Raises:
            WorkerLost: the process died.
            Exception: what the step raised.
        """
        function = task.step.function
        executor = await self._free.get()
        begins()
        loop = asyncio.get_running_loop()
        try:
            value = await loop.run_in_executor(
                executor, _call, function.__module__, function.__qualname__, arguments
            )
        except asyncio.CancelledError:
            await self._replace(executor)
            raise
        except BrokenProcessPool as error:
            await self._replace(executor)
            raise WorkerLost(f"step {task.name!r}: the process that ran it died") from error
        except BaseException:
            self._free.put_nowait(executor)
            raise
        self._free.put_nowait(executor)
        return value

    async def _new(self) -> ProcessPoolExecutor:
        executor = ProcessPoolExecutor(1, mp_context=self._context)
        self._all.add(executor)
        await asyncio.get_running_loop().run_in_executor(executor, _warm, self._modules)
        return executor

    async def _replace(self, executor: ProcessPoolExecutor) -> None:
        self._end(executor)
        self._all.discard(executor)
        self._free.put_nowait(await self._new())

    @staticmethod
    def _end(executor: ProcessPoolExecutor) -> None:
        # There is no public way to end a busy executor's process.
        for process in list((executor._processes or {}).values()):  # noqa: SLF001
            process.kill()
        executor.shutdown(wait=False, cancel_futures=True)
