"""Turns new namespaces into a machine and becomes its systemd; started by `systemd_machine` only.

The machine sees this one's files through an overlay: what it writes goes to a tmpfs and is gone with
it. Kernel settings are read-only but for the network's, which are its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# Units of a full system that would wait for hardware, or for a person.
MASKED = (
    "getty@tty1.service", "console-getty.service", "serial-getty@.service",
    "systemd-udevd.service", "systemd-timesyncd.service", "systemd-logind.service",
    "systemd-modules-load.service", "apt-daily.timer", "apt-daily-upgrade.timer",
    "redis-server.service", "postgresql.service", "e2scrub_reap.service",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ENVIRONMENT = {
    "container": "agentq-test",  # systemd then leaves the hardware alone
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "TERM": "dumb",
}


def run(*words: str | Path) -> None:
    subprocess.run(["/usr/bin/env", *map(str, words)], check=True)


def mount(*words: str | Path) -> None:
    run("mount", *words)


def main(folder: Path, binds: list[str]) -> None:
    """Build the machine below *folder* (a tmpfs of its own) and become its process 1.

    *binds*: ``/source:/target`` of folders that are seen inside, writable.
    """
    mount("--make-rprivate", "/")
    run("ip", "link", "set", "lo", "up")
    root = _overlay(folder)
    _kernel(root)
    _devices(root / "dev")
    _cgroups(root / "sys/fs/cgroup")
    for bind in binds:
        source, target = bind.split(":")
        inside = root / target.lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        mount("--rbind", source, inside)
    units = root / "etc/systemd/system"
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    shutil.copytree(folder / "files", root, dirs_exist_ok=True, symlinks=True)
    (root / "etc/machine-id").write_text("")
    _become(root)


def _overlay(folder: Path) -> Path:
    room = folder / "room"
    room.mkdir()
    mount("-t", "tmpfs", "-o", "mode=755,size=2g", "tmpfs", room)
    upper, work, root = room / "upper", room / "work", room / "root"
    for made in (upper, work, root):
        made.mkdir()
    mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root)
    return root


def _kernel(root: Path) -> None:
    mount("-t", "proc", "proc", root / "proc")
    # systemd-sysctl would change the host's settings, but for those of a network namespace.
    mount("--bind", root / "proc/sys", root / "proc/sys")
    mount("-o", "remount,bind,ro", root / "proc/sys")
    own = root.parent / "proc"
    own.mkdir()
    mount("-t", "proc", "proc", own)
    mount("--bind", own / "sys/net", root / "proc/sys/net")
    mount("-t", "sysfs", "-o", "ro", "sysfs", root / "sys")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", root / "run")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root / "tmp")


def _devices(dev: Path) -> None:
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", dev)
    for name in _DEVICES:
        run("cp", "-a", f"/dev/{name}", dev / name)
    for name in ("pts", "shm", "mqueue"):
        (dev / name).mkdir()
    options = "newinstance,ptmxmode=0666,mode=620,gid=5"
    mount("-t", "devpts", "-o", options, "devpts", dev / "pts")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", dev / "shm")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1"}
    for name, target in {**links, "stderr": "fd/2"}.items():
        (dev / name).symlink_to(target)


def _cgroups(inside: Path) -> None:
    """Mount each hierarchy afresh: the cgroup namespace shows its own part of it as the root."""
    outside = Path("/sys/fs/cgroup")
    if (outside / "cgroup.controllers").exists():
        mount("-t", "cgroup2", "cgroup2", inside)
        return
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", inside)
    for hierarchy in sorted(outside.iterdir()):
        if not hierarchy.is_mount() or hierarchy.is_symlink():
            continue
        own = inside / hierarchy.name
        own.mkdir()
        if (hierarchy / "cgroup.controllers").exists():
            mount("-t", "cgroup2", "cgroup2", own)
        elif hierarchy.name == "systemd":
            mount("-t", "cgroup", "-o", "none,name=systemd", "cgroup", own)
        else:
            mount("-t", "cgroup", "-o", hierarchy.name, "cgroup", own)


def _become(root: Path) -> None:
    old = root / ".old"
    old.mkdir()
    os.chdir(root)
    run("pivot_root", ".", ".old")
    run("umount", "-l", "/.old")
    mount("--make-rshared", "/")  # systemd hands credentials over by a mount
    systemd = ["/lib/systemd/systemd", "--system", "--unit=basic.target", "--log-target=console"]
    os.execve(systemd[0], [*systemd, "--show-status=no"], _ENVIRONMENT)  # noqa: S606


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
