"""A server that is killed, restarted, stopped, or loses its disk or its power."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentq.errors import BrokerUnavailable
from agentq.store.embedded import AppendFsync
from tests.fault.scenarios.ground import Ground, ground, now
from tests.fault.scenarios.row import Row
from tests.support.redis_server import Server, private_server
from tests.support.waiting import wait_until

RESUMES_WITHIN_S = 5.0

LEASE_S = 5.0
"""Long enough that no live process of a busy machine loses one: nothing may begin twice here."""

_PTRACE = "this system does not let strace attach"


def restarted(
    trials: int, *, kind: str, appendfsync: AppendFsync = "always"
) -> list[Row]:  # fmt: skip
    """End the server, by SIGKILL and in order in turns, in the middle of runs; start it again."""
    slowest = 0.0
    with ground(lease=LEASE_S, appendfsync=appendfsync) as here:
        workers = [here.worker(kind), here.worker(kind)]
        for trial in range(trials):
            ended = len(here.lines("end "))
            here.submit(40, 0.05)
            here.send(20, 0.05)
            here.until("end", ended + 10)
            if trial % 2 == 0:
                here.server.kill()
                here.server.start()
            else:
                here.server.restart()
            slowest = max(slowest, here.answers())
            assert all(worker.alive() for worker in workers), "a worker ended with its server"
        lost, doubled = here.ended(workers=2)
    assert slowest < RESUMES_WITHIN_S, f"work went on only after {slowest:.1f} s"
    what = f"Redis SIGKILL and restart, {kind}, appendfsync {appendfsync}"
    note = "workers stay up"
    if (
        appendfsync != "always"
    ):  # what was not on the disk yet is lost, and what had ended runs again
        note += f"; by design {lost} lost, {doubled} begun again"
        lost = doubled = 0
    return [Row(4, what, trials, lost, doubled, slowest, note)]


def disk_error(trials: int) -> list[Row]:
    """Let fsync fail once: a server that promises `always` ends itself."""
    if not _traceable():
        return [Row(26, "disk error on fsync", 0, 0, 0, None, _PTRACE)]
    slowest = 0.0
    with ground(lease=LEASE_S) as here:
        workers = [here.worker(), here.worker()]
        for _ in range(trials):
            ended = len(here.lines("end "))
            here.submit(40, 0.05)
            here.until("end", ended + 10)
            with _strace(here.server, "-e", "inject=fdatasync,fsync:error=EIO"):
                wait_until(lambda: _ended(here.server), "the server gives up")
            here.server.start()
            slowest = max(slowest, here.answers())
        assert all(worker.alive() for worker in workers)
        lost, doubled = here.ended(workers=2)
    return [
        Row(26, "disk error on fsync", trials, lost, doubled, slowest, "the server ends itself")
    ]


# -- a server that stands still -----------------------------------------------------------------------


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the server's process; it goes on where it was."""
    pid = server.embedded.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def paused(server: Server, seconds: float) -> Iterator[None]:
    """Let the server answer nobody for *seconds*."""
    until = now() + seconds
    server.client.client_pause(int(seconds * 1000), all=True)
    yield
    wait_until(lambda: now() >= until, "the pause ends", seconds + 5)


def away(
    trials: int, *, how: Literal["paused", "stopped"], seconds: float, timeout: float = 5.0
) -> list[Row]:
    """Let the server stand still while runs go on and a producer submits with a key."""
    slowest = waited = 0.0
    with ground(lease=LEASE_S, BROKER__TIMEOUT=f"{timeout:g}s") as here:
        workers = [here.worker(), here.worker("prefork")]
        for trial in range(trials):
            ended = len(here.lines("end "))
            here.submit(40, 0.1)
            here.until("end", ended + 4)
            with paused(here.server, seconds) if how == "paused" else stopped(here.server):
                until = now() + seconds
                waited = max(waited, _refused(here, f"key{trial}"))
                wait_until(lambda until=until: now() >= until, "the time is over", seconds + 5)  # type: ignore[misc]
            slowest = max(slowest, here.answers())
            here.submit(3, 0.0, key=f"key{trial}")
        assert all(worker.alive() for worker in workers)
        lost, doubled = here.ended(workers=2)
    assert waited < timeout + 1, f"a producer was stuck for {waited:.1f} s"
    note = f"a submit was refused after {waited:.1f} s, and again with its key is one run"
    what = {"paused": "CLIENT PAUSE", "stopped": "Redis stopped"}[how]
    return [Row(7, f"{what} for {seconds:g} s", trials, lost, doubled, slowest, note)]


def _refused(here: Ground, key: str) -> float:
    """Submit to a server that does not answer; return how long that took."""
    began = now()
    try:
        here.app.fan.submit([key, 3, 0.0], key=key)
    except BrokerUnavailable:
        return now() - began
    raise AssertionError("a server that stands still took a run")


def stopped_for_leases(trials: int, *, seconds: float, lease: float = 1.0) -> list[Row]:
    """Stop the server for many leases while workers of both kinds run long steps."""
    slowest = 0.0
    with ground(lease=lease) as here:
        workers = [here.worker(), here.worker("prefork")]
        for _ in range(trials):
            begun = len(here.lines("begin "))
            here.submit(8, seconds + 2)
            here.until("begin", begun + 6)
            with stopped(here.server):
                time.sleep(seconds)  # that it is stopped, and nothing else, is the fault
            slowest = max(slowest, here.first_after(now(), "begin", within=seconds + 30))
        assert all(worker.alive() for worker in workers)
        lost, doubled = here.ended(workers=2)
    note = f"lease {lease:g} s; no step started again"
    return [Row(32, f"Redis stopped for {seconds:g} s", trials, lost, doubled, None, note)]


# -- power ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """What a power cut cost."""

    accepted: int
    gone: int
    window_s: float
    """How long before the cut the oldest of them was accepted."""


def power_cut(trials: int, *, appendfsync: AppendFsync, seconds: float = 3.0) -> list[Row]:
    """Submit for a while, cut the power (the file keeps what had been synced), and look what is still there."""
    what = f"power cut, appendfsync {appendfsync}"
    if not _traceable():
        return [Row(5, what, 0, 0, 0, None, _PTRACE)]
    cuts = [_cut_power(appendfsync, seconds) for _ in range(trials)]
    gone = sum(cut.gone for cut in cuts)
    accepted = sum(cut.accepted for cut in cuts)
    note = f"{gone} of {accepted} accepted gone"
    if gone:
        note += f", the oldest {max(cut.window_s for cut in cuts):.1f} s before the cut"
    by_design = appendfsync != "always"
    return [Row(5, what, trials, 0 if by_design else gone, 0, None, note)]


def _cut_power(appendfsync: AppendFsync, seconds: float) -> Cut:
    with ground(appendfsync=appendfsync) as here:
        [file] = here.server.embedded.data_dir.glob("appendonlydir/*.incr.aof")
        with _strace(here.server, "-e", "trace=fdatasync,fsync,write", "-y") as log:
            before = file.stat().st_size
            accepted = _submitted_for(here, seconds)
            here.server.kill()
            cut = now()
        os.truncate(file, before + _synced(log, file.name))
        here.server.start()
        there = [bool(here.redis.exists(here.keys.run(run))) for run, _ in accepted]
        gone = [at for (_, at), found in zip(accepted, there, strict=True) if not found]
        window = cut - min(gone, default=cut)
        return Cut(len(accepted), len(gone), window)


def _submitted_for(here: Ground, seconds: float) -> list[tuple[str, float]]:
    """Return ids of runs and when each was accepted."""
    until = now() + seconds
    accepted = []
    while now() < until:
        accepted.append((here.app.fan.submit(["x", 1, 0.0]).id, now()))
    return accepted


def _synced(log: Path, file: str) -> int:
    """Return how many bytes were written to *file* before a sync that came to its end began."""
    written = synced = 0
    under_way: dict[str, int] = {}
    """Thread, and what had been written when its call on the file began."""
    for line in log.read_text(errors="replace").splitlines():
        thread, _, call = line.partition(" ")
        if file in call:
            under_way[thread] = written
        done = re.search(r" = (-?\d+)$", call)
        if thread in under_way and done and "write" in call.partition("(")[0]:
            del under_way[thread]
            written += int(done[1])
        elif thread in under_way and done:
            synced = max(synced, under_way.pop(thread))
    return synced


# -- strace --------------------------------------------------------------------------------------------


def _traceable() -> bool:
    """Tell whether strace is here and may attach to what this process started."""
    try:
        with private_server() as server, _strace(server, "-e", "trace=fsync"):
            return True
    except (AssertionError, FileNotFoundError):
        return False


@contextmanager
def _strace(server: Server, *options: str) -> Iterator[Path]:
    """Attach strace to the server until the block ends; the log is in the server's folder."""
    log, said = (server.embedded.data_dir / name for name in ("strace.log", "strace.said"))
    with said.open("wb") as output:
        tracer = subprocess.Popen(
            ["strace", "-f", "-o", str(log), *options, "-p", str(server.embedded.pid)],  # noqa: S607 -- where it is is the system's
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_until(lambda: b"attached" in said.read_bytes() or tracer.poll() is not None, "strace")
        assert b"attached" in said.read_bytes(), said.read_text()
        yield log
    finally:
        tracer.terminate()
        tracer.wait()


def _ended(server: Server) -> bool:
    process = server.embedded._process  # noqa: SLF001 -- to see its end
    return process is None or process.poll() is not None
