"""Ending together with the process that started this one, however that comes about."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import select
import signal
import sys

from agentq.host.allocator import enable_background_thread

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when *parent*, which started it, ends.

    Linux only: elsewhere a parent that is killed leaves its children behind. The kernel watches the
    parent's *thread* that started this process, which therefore has to be its main one. Survives
    an exec.

    Raises:
        SystemExit: the parent has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the kernel was asked
        raise SystemExit(f"process {parent}, which started this one, has gone")


def end_with_spawner() -> None:
    """Have the kernel end this `multiprocessing` child when the process that asked for it is gone.

    Behind a fork server that is not the parent: the spawner keeps the other end of a pipe, and when
    that closes SIGIO comes, which nobody handles. So even a child ends that holds the GIL for ever.
    """
    spawner = multiprocessing.parent_process()
    if spawner is None:
        raise RuntimeError("this process is no child of multiprocessing")
    pipe = spawner.sentinel
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # it ended before the kernel was asked
        signal.raise_signal(signal.SIGIO)


def begin_child(folder: str) -> None:
    """Prepare a worker's `multiprocessing` child: it ends with the worker and finds the app.

    It also returns memory while it waits, which fork had made it forget.

    *folder* is the worker's current one, in which Celery looks for apps; the child's own may differ
    (``--workdir``). Ctrl-C, which a terminal sends to the child too, is the worker's to answer.
    """
    end_with_spawner()
    enable_background_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if folder not in sys.path:
        sys.path.insert(0, folder)
