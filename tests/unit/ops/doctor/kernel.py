"""A written /proc and /sys of a machine that nothing is wrong with, to spoil file by file."""

from __future__ import annotations

import os
from pathlib import Path

from agentq.ops.doctor.roots import Roots
from tests.unit.host.machines import write_host

_HEALTHY = {
    "proc/sys/fs/file-nr": "3000\t0\t9223372036854775807\n",
    "proc/sys/vm/overcommit_memory": "1\n",
    "proc/stat": "cpu0 100 0 0 900 0 0 0 0\ncpu1 100 0 0 900 0 0 0 0\n",
    "proc/interrupts": (
        "           CPU0       CPU1       CPU2       CPU3       \n"
        " 24:          9          0          0          0  IO-APIC   5-edge   eth0\n"
        " 25:          0          0          0          0  IO-APIC   6-edge   never\n"
        "NMI:          0          0          0          0  Non-maskable interrupts\n"
    ),
    "proc/irq/24/smp_affinity_list": "0\n",
    "proc/irq/25/smp_affinity_list": "0-3\n",
    "proc/12/comm": "agentq\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "schedutil\n",
}


class Kernel:
    """The tree below *root*."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.roots = Roots(root=write_host(root))
        for name, text in _HEALTHY.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self._root / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))

    def drop(self, name: str) -> None:
        (self._root / name).unlink()

    def mount(self, folder: Path, kind: str, *, turns: bool | None) -> None:
        """Say what *folder* is on: a file system, and a partition of a disk that turns or not."""
        number = folder.stat().st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        self.write(
            "proc/self/mountinfo", f"36 35 {device} / /data rw,noatime - {kind} /dev/sda1 rw\n"
        )
        if turns is not None:
            self.write("sys/devices/sda/queue/rotational", f"{turns:d}\n")
            (self._root / "sys/devices/sda/sda1").mkdir()
            (self._root / "sys/dev/block").mkdir(parents=True)
            (self._root / f"sys/dev/block/{device}").symlink_to("../../devices/sda/sda1")
