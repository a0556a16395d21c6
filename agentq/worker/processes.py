"""Processes for steps of kind="cpu": started before work comes, one step at a time in each.

They come from a fork server: a fork of a process with uvloop and threads hangs. Each has an
executor of its own, so that a step behind its deadline can be ended by ending its process, and
only that. Each has a slot, which says on which cores it runs; who takes its place runs there too.
Spare ones, started and warmed as well, take the slot of one that ends: nobody waits for an import.
All end with the worker, however it ends, and the fork server with the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from agentq.errors import PlatformUnsupported, SettingsError, WorkerLost
from agentq.host.affinity import pin
from agentq.host.limits import fullest
from agentq.host.numa import policy, set_policy
from agentq.host.parent import begin_child
from agentq.worker.contained import guarded
from agentq.worker.warmup import warm_child

logger = logging.getLogger(__name__)

_BETWEEN_TRIES = 1.0
"""Seconds until a process that would not start is tried again."""


def _call(module: str, name: str, arguments: list[Any]) -> Any:
    """Run a step's function in the child, found by name: the module's attribute is its task."""
    target: Any = import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return guarded(target.step.function, *arguments)


def _how_it_ended(executor: ProcessPoolExecutor, process: BaseProcess) -> str:
    """Wait for the end of a broken executor's process; return it in words."""
    executor.shutdown()  # its thread has the exit code read: who reads it second finds none
    code = process.exitcode or 0
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == signal.SIGKILL:
        return "was killed (SIGKILL): by the kernel for want of memory, or by somebody"
    return f"was ended by signal {-code} ({signal.strsignal(-code)})"


def _begin(folder: str, cores: tuple[int, ...]) -> None:
    begin_child(folder)
    with contextlib.suppress(SettingsError):  # taken away since it was planned: where it may run
        pin(cores)
    with contextlib.suppress(PlatformUnsupported):
        if policy()[0] == "bind":  # inherited from the worker, whose node may be another
            set_policy("local")


class _Child(NamedTuple):
    process: BaseProcess
    slot: int | None
    """None: a spare one."""


class Processes:
    """A fixed number of single-step processes; none is started before `start`."""

    def __init__(
        self,
        *,
        cores: Sequence[tuple[int, ...]],
        modules: list[str],
        warmers: Sequence[tuple[str, str]] = (),
        spare: int = 0,
    ) -> None:
        """Take the logical cores of each, by slot, and what to import and then to call in it.

        Args:
            cores: of each slot.
            modules: imported.
            warmers: called, by module and name.
            spare: as many more are kept for when one ends; none where there are no slots.
        """
        self._cores = cores
        self._spare = spare if cores else 0
        self._spares: deque[ProcessPoolExecutor] = deque()
        self._modules = modules
        self._warmers = list(warmers)
        self._context = multiprocessing.get_context("forkserver")
        self._free: asyncio.Queue[ProcessPoolExecutor] = asyncio.Queue()
        self._all: dict[ProcessPoolExecutor, _Child] = {}
        self._refills: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of those that run or wait for a step."""
        return [child.process.pid for child in self._all.values() if child.process.pid]

    async def start(self) -> None:
        """Start and warm the processes; safe twice."""
        for slot in range(len(self._all), len(self._cores)):
            self._free.put_nowait(await self._new(slot))
        while len(self._spares) < self._spare:
            self._spares.append(await self._new(None))

    async def stop(self) -> None:
        """End the processes; safe twice."""
        for refill in self._refills:
            refill.cancel()
        for executor in self._all:
            self._end(executor)
        self._all.clear()
        self._spares.clear()
        self._free = asyncio.Queue()

    def move(self, cores: Sequence[tuple[int, ...]]) -> None:
        """Have the processes, those to come too, on other cores: by slot, in turn."""
        self._cores = [cores[slot % len(cores)] for slot in range(len(self._cores))]
        for child in list(self._all.values()):
            self._pin(child)

    async def run(self, task: Any, arguments: list[Any], *, begins: Callable[[], None]) -> Any:
        """Run a step's function in a free process; cancelled, its process ends with it.

        *begins* is called when there is one.

        Raises:
            WorkerLost: the process died.
            Exception: what the step raised.
        """
        function = task.step.function
        call = (_call, function.__module__, function.__qualname__, arguments)
        executor, running = await self._begun(call)
        begins()
        try:
            value = await running
        except asyncio.CancelledError:
            self._replace(executor)
            raise
        except BrokenProcessPool as error:
            try:
                how = await asyncio.to_thread(_how_it_ended, executor, self._all[executor].process)
            finally:
                self._replace(executor)
            raise WorkerLost(f"step {task.name!r}: the process that ran it {how}") from error
        except BaseException:
            self._free.put_nowait(executor)
            raise
        self._free.put_nowait(executor)
        return value

    async def _begun(self, call: Any) -> tuple[ProcessPoolExecutor, asyncio.Future[Any]]:
        """Begin *call* in a free process, passing over those that died while they were free."""
        while True:
            executor = await self._free.get()
            try:
                return executor, asyncio.get_running_loop().run_in_executor(executor, *call)
            except BrokenProcessPool:
                self._replace(executor)

    async def _new(self, slot: int | None) -> ProcessPoolExecutor:
        executor = ProcessPoolExecutor(
            1,
            mp_context=self._context,
            initializer=_begin,
            initargs=(str(Path.cwd()), self._cores_of(slot)),
        )
        warmed = asyncio.get_running_loop().run_in_executor(
            executor, warm_child, self._modules, self._warmers
        )
        # There is no public way to a busy executor's process.
        [process] = executor._processes.values()  # noqa: SLF001
        self._all[executor] = _Child(process, slot)
        await warmed
        return executor

    def _serve(self, executor: ProcessPoolExecutor, slot: int) -> None:
        """Have a spare process take a slot, and run on its cores."""
        child = self._all[executor] = self._all[executor]._replace(slot=slot)
        self._pin(child)
        self._free.put_nowait(executor)

    def _pin(self, child: _Child) -> None:
        with contextlib.suppress(SettingsError, ProcessLookupError):  # as `_begin`; it has ended
            pin(self._cores_of(child.slot), pid=child.process.pid)

    def _cores_of(self, slot: int | None) -> tuple[int, ...]:
        """Return where the process of *slot* runs; a spare one anywhere."""
        if slot is not None:
            return self._cores[slot]
        return tuple(sorted({core for cores in self._cores for core in cores}))

    def _replace(self, executor: ProcessPoolExecutor) -> None:
        """End a process now, let a spare one serve, and start another in a task of its own.

        Who asks may be cancelled a second time, and the place must not be lost with it.
        """
        self._end(executor)
        child = self._all.pop(executor, None)
        if child is None:  # all are being ended
            return
        slot = child.slot
        if slot is not None and self._spares:
            self._serve(self._spares.popleft(), slot)
            slot = None
        refill = self._refill(slot)
        task = asyncio.get_running_loop().create_task(refill, name="agentq-cpu-process")
        self._refills.add(task)
        task.add_done_callback(self._refills.discard)

    async def _refill(self, slot: int | None) -> None:
        while True:
            try:
                executor = await self._new(slot)
            except (BrokenProcessPool, OSError, EOFError, RuntimeError) as error:  # no fork, thread
                logger.error(  # noqa: TRY400
                    "no process for steps of kind 'cpu': %s; trying again", fullest(error)
                )
                await asyncio.sleep(_BETWEEN_TRIES)
            else:
                if slot is None:
                    self._spares.append(executor)
                else:
                    self._free.put_nowait(executor)
                return

    def _end(self, executor: ProcessPoolExecutor) -> None:
        if child := self._all.get(executor):
            child.process.kill()
        executor.shutdown(wait=False, cancel_futures=True)
