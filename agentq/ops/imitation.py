"""`agentq up --cpus 0.5 --memory 256M`: a small production machine, played on a large one.

For any user, without systemd and control groups. What is imitated, and how::

    cores     affinity: as many as the share needs, rounded up; inherited by all that `up` starts
    CPU       a duty cycle (`agentq.host.duty`), and nice, so that your editor stays quick
    memory    looked at once a second; beyond the limit the largest process is ended by SIGKILL, as
              the kernel would, the broker last. That has a maxmemory of a quarter, as it should.
              Workers get what the plan of that machine gives them, and stop taking work before.
              `up` and the duty cycle do not count: there is neither on the small machine

Memory is not limited by RLIMIT_AS: that counts reserved addresses (each thread's stack, each arena)
rather than pages in use, and each process for itself, so a worker would fail in odd places long
before the machine is full.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from agentq.clock import format_duration
from agentq.errors import PlatformUnsupported, SettingsError
from agentq.host import duty
from agentq.host.affinity import pin
from agentq.host.machine import read_machine
from agentq.host.process import descendants, pss_bytes
from agentq.host.topology import allowed_cores, format_cores
from agentq.ops.plan import plan_of
from agentq.settings.sources import variable_of

if TYPE_CHECKING:
    from agentq.settings import Settings

SMALLEST_MEMORY = 128 * 2**20
"""A worker takes some 50 MB before it has done anything, and as much with processes of its own."""

_NICE = 5
_STOP_S = 5.0
_BROKERS_SHARE = 4
_NOT = (
    "not imitated: slower cores, caches and memory bandwidth, page cache and disk of a small "
    "machine, swap, the network between machines; memory that is held for less than a second"
)


@dataclass(frozen=True, kw_only=True)
class Small:
    """The machine that is imitated; None: as this one is."""

    cpus: float | None = None
    """Of one core."""
    memory: int | None = None
    """Bytes, of everything that `up` runs together."""

    @property
    def broker_memory(self) -> int | None:
        """Return what the embedded server may take."""
        return self.memory // _BROKERS_SHARE if self.memory else None

    @property
    def slowness(self) -> float:
        """Return how many times longer everything takes to start."""
        return max(1.0, 1 / self.cpus) if self.cpus else 1.0


AS_IT_IS = Small()
"""No imitation."""


class Imitation:
    """Holds this process' children to a small machine, from `start` to `stop`."""

    def __init__(self, *, small: Small, settings: Settings) -> None:
        """Take the parts.

        Raises:
            SettingsError: it can not be imitated without breaking leases, or at all.
            PlatformUnsupported: this kernel lacks what it takes.
        """
        self._small = small
        self._settings = settings
        self._broker: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if small.cpus is not None:
            _refuse(small.cpus, settings)
        if small.memory is not None:
            _refuse_memory(small.memory)

    def start(self) -> Iterator[str]:
        """Begin, before anything else is started; yield what is to be said of it."""
        if self._small.cpus is not None:
            cores = allowed_cores()[-math.ceil(self._small.cpus) :]
            pin(cores)
            os.nice(_NICE)
            self._begin()
            yield (
                f"imitating: {self._small.cpus:g} CPU on core {format_cores(cores)} (all stand "
                f"still for the rest of the time, at most {format_duration(duty.LONGEST)} at "
                f"once), nice {_NICE}"
            )
        if self._small.memory is not None:
            yield (
                f"imitating: {self._small.memory >> 20} MB of memory (beyond it the largest "
                "process is ended; --no-dashboard and --pool NAME need less)"
            )
        if self._small != AS_IT_IS:
            yield _NOT

    def variables(self) -> dict[str, str]:
        """Return what tells the workers how much memory each would have there."""
        if self._small.memory is None:
            return {}
        machine = replace(read_machine(), memory_bytes=self._small.memory)
        return {
            variable_of(f"pools.{one.pool}.memory"): str(one.memory_bytes)
            for one in plan_of(self._settings, cpu_steps=False, machine=machine).processes
        }

    def spare(self, broker: int | None) -> None:
        """Name the broker's process, which is ended last."""
        self._broker = broker

    def round(self) -> Iterator[str]:
        """Look once, about every second; yield what is to be said."""
        if self._process is not None and (status := self._process.poll()) is not None:
            duty.let_go(os.getpid())
            self._begin()
            yield f"imitating: the duty cycle ended with status {status} and is started again"
        if self._small.memory is not None:
            yield from self._end_the_largest(self._small.memory)

    def stop(self) -> None:
        """End; what stands still goes on. Safe twice."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
            self._process.kill()  # nothing happens where it has ended
            self._process.wait()
            self._process = None
            duty.let_go(os.getpid())

    def _begin(self) -> None:
        command = [sys.executable, "-P", "-m", duty.__name__, str(os.getpid())]
        self._process = subprocess.Popen(  # noqa: S603 -- this package's own
            [*command, str(self._small.cpus)], stdin=subprocess.DEVNULL, start_new_session=True
        )

    def _end_the_largest(self, most: int) -> Iterator[str]:
        own = self._process.pid if self._process else None
        sizes = {}
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                if pid != own:
                    sizes[pid] = pss_bytes(pid)
        if (total := sum(sizes.values())) <= most:
            return
        largest = max(sizes, key=lambda pid: (pid != self._broker, sizes[pid]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(largest, signal.SIGKILL)
        yield (
            f"memory: {total >> 20} MB of {most >> 20} MB in use: process {largest} "
            f"({sizes[largest] >> 20} MB) was ended, as the kernel would"
        )


def _refuse(cpus: float, settings: Settings) -> None:
    if not hasattr(os, "pidfd_open"):
        raise PlatformUnsupported("--cpus needs Linux 5.3 or newer (pidfd_open)")
    most = len(allowed_cores())
    if not duty.SMALLEST <= cpus <= most:
        raise SettingsError(
            f"--cpus must be from {duty.SMALLEST:g} to {most}, the cores this process may use"
        )
    shortest = 4 * duty.LONGEST
    worker = settings.worker
    limits = {"worker.lease": worker.lease / 3, "worker.hang_timeout": worker.hang_timeout}
    for name, limit in limits.items():
        if limit < shortest:
            raise SettingsError(
                f"--cpus stops processes for up to {format_duration(duty.LONGEST)} at once, too "
                f"long for {name}: set it to {_least(name, shortest)} or more"
            )


def _refuse_memory(memory: int) -> None:
    most = read_machine().memory_bytes
    if not SMALLEST_MEMORY <= memory <= most:
        raise SettingsError(
            f"--memory must be from {SMALLEST_MEMORY >> 20}M, which a broker and a worker need, to "
            f"{most >> 20}M, what this machine has"
        )


def _least(name: str, shortest: timedelta) -> str:
    return format_duration(3 * shortest if name == "worker.lease" else shortest)
