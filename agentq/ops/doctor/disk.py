"""The disk below the append-only file: what it is, how fast it syncs, whether there is room."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentq.ops.doctor.facts import Facts
from agentq.ops.doctor.finding import Finding, error, note, unchecked, warning
from agentq.ops.doctor.roots import Roots

SYNCS = 40
_BLOCK = bytes(4096)
P99_MS = {"always": 20.0, "everysec": 500.0}
"""With `always` each batch of calls waits for it; with `everysec` writers wait once it takes
longer than a second."""

SPARE = 2
"""A rewrite of the file needs its size once more while it is made."""


def disk(facts: Facts, roots: Roots) -> Iterator[Finding]:
    """Look at the server's data folder, where it is on this machine."""
    if (folder := facts.folder) is None:
        told = "the server does not tell its folder" if facts.local else "it is on another machine"
        yield unchecked("disk.device", told, remedy="run agentq doctor there, as an admin")
        return
    mode = facts.config.get("appendfsync", "everysec")
    yield from device(folder, roots, production=facts.production)
    yield from room(folder, needed=SPARE * facts.number("aof_current_size"))
    try:
        took = measure(folder)
    except OSError as failure:
        yield unchecked(
            "disk.fsync", f"{folder}: {failure.strerror}",
            remedy=f"sudo -u redis agentq doctor: as the user who may write {folder}",
        )  # fmt: skip
    else:
        yield from syncing(took, mode)


def device(folder: Path, roots: Roots, *, production: bool) -> Iterator[Finding]:
    """Find data in memory and on disks that turn."""
    kind = _file_system(folder, roots)
    if kind in {"tmpfs", "ramfs"}:
        finding = error if production else warning
        yield finding(
            "disk.device", f"{folder} is {kind}: it is in memory",
            why="the append-only file is gone with the machine's next start",
            remedy="the line `dir /var/lib/redis` in redis.conf and a restart",
        )  # fmt: skip
        return
    number = folder.stat().st_dev
    at = (roots.sys / f"dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    flag = next(
        (path for path in (at, at.parent) if (path / "queue/rotational").is_file()), None
    )  # a partition's queue is its disk's
    if flag is None:
        yield unchecked(
            "disk.device", f"{folder} ({kind or 'unknown'}) is on no block device that shows here",
            remedy=f"findmnt -T {folder}; a network file system is no place for such a file",
        )  # fmt: skip
    elif (flag / "queue/rotational").read_text(encoding="ascii").strip() == "1":
        yield note(
            "disk.device",
            f"{folder} is on {flag.name}, which says that it turns",
            why="a disk that turns syncs some 100 times a second; virtual disks often say so and "
            "do not: the measured fsync counts",
            remedy="a solid-state disk for the append-only file",
        )


def _file_system(folder: Path, roots: Roots) -> str | None:
    """Return the type of the file system that *folder* is on; None: it is not told."""
    number = folder.stat().st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in (roots.proc / "self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return None


def room(folder: Path, *, needed: int) -> Iterator[Finding]:
    """Find a disk that is too full for the next rewrite; *needed* in bytes."""
    there = os.statvfs(folder)
    free = there.f_bavail * there.f_frsize
    if free < max(needed, there.f_blocks * there.f_frsize // 50):
        yield warning(
            "disk.room",
            f"{free / 2**20:,.0f} MB are free in {folder}",
            why="a server that can not write its append-only file refuses all writes (MISCONF)",
            remedy=f"df -h {folder}; make room, or BGREWRITEAOF while there is some",
        )


def measure(folder: Path) -> list[float]:
    """Return how long each of `SYNCS` writes of 4 KiB took to be on the disk, ms.

    Into a file without a name, which is gone when it is closed.

    Raises:
        OSError: this user may not write there, or the file system has no such files.
    """
    took = []
    file = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
    try:
        for _ in range(SYNCS):
            os.write(file, _BLOCK)
            began = time.perf_counter()
            os.fdatasync(file)
            took.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(file)
    return took


def syncing(took: Sequence[float], mode: str) -> Iterator[Finding]:
    """Judge measured syncs, ms, for an `appendfsync` mode."""
    p99 = sorted(took)[int(0.99 * (len(took) - 1))]
    if mode in P99_MS and p99 > P99_MS[mode]:
        yield warning(
            "disk.fsync",
            f"an fsync takes {p99:.1f} ms (p99 of {len(took)}), appendfsync is {mode}",
            why="each hand-over of a step waits for it" if mode == "always"
            else "the server stops taking writes while one takes longer than two seconds",
            remedy="a disk of its own for the append-only file (`dir` in redis.conf), or "
            "`iostat -x 1` to see who else writes",
        )  # fmt: skip
