"""The disk below the append-only file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentq.ops.doctor import disk
from tests.unit.ops.doctor.kernel import Kernel


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def test_a_partition_of_a_disk_that_does_not_turn_is_well(kernel: Kernel, data: Path) -> None:
    kernel.mount(data, "ext4", turns=False)
    assert list(disk.device(data, kernel.roots, production=True)) == []


def test_a_disk_that_turns_is_noted(kernel: Kernel, data: Path) -> None:
    kernel.mount(data, "ext4", turns=True)
    [found] = disk.device(data, kernel.roots, production=True)
    assert (found.severity, found.subject) == ("note", "disk.device")
    assert "is on sda, which says that it turns" in found.seen


@pytest.mark.parametrize(("production", "severity"), [(True, "error"), (False, "warning")])
def test_data_in_memory_is_found(
    kernel: Kernel, data: Path, *, production: bool, severity: str
) -> None:
    kernel.mount(data, "tmpfs", turns=None)
    [found] = disk.device(data, kernel.roots, production=production)
    assert (found.severity, found.subject) == (severity, "disk.device")


def test_a_device_that_does_not_show_is_said(kernel: Kernel, data: Path) -> None:
    kernel.mount(data, "nfs4", turns=None)
    [found] = disk.device(data, kernel.roots, production=True)
    assert found.severity == "note"
    assert found.seen.startswith("not checked:")


def test_room_for_the_next_rewrite_is_asked_for(data: Path) -> None:
    free = os.statvfs(data).f_bavail * os.statvfs(data).f_frsize
    [found] = disk.room(data, needed=2 * free)
    assert (found.severity, found.subject) == ("warning", "disk.room")


def test_the_measured_burst_leaves_nothing_behind(data: Path) -> None:
    took = disk.measure(data)
    assert len(took) == disk.SYNCS
    assert all(one > 0 for one in took)
    assert list(data.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "took_ms", "names"),
    [
        ("always", 2.0, []),
        ("always", 90.0, ["disk.fsync"]),
        ("everysec", 90.0, []),
        ("everysec", 900.0, ["disk.fsync"]),
        ("no", 900.0, []),
    ],
)
def test_a_slow_sync_counts_by_how_often_the_server_waits_for_it(
    mode: str, took_ms: float, names: list[str]
) -> None:
    assert [one.subject for one in disk.syncing([1.0] * 10 + [took_ms] * 10, mode)] == names
