"""A real systemd as process 1 of namespaces of its own, with everything below it gone at the end.

The machine has this one's files through an overlay, an own network and own cgroups. Needs root,
and a kernel that grants namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.booted import ENVIRONMENT, Booted
from tests.support.waiting import wait_until

_CGROUPS = Path("/sys/fs/cgroup")
_UNSHARED = ("--pid", "--mount", "--uts", "--ipc", "--cgroup", "--net")
_ENTERED = ("-m", "-p", "-u", "-i", "-C", "-n")
_HALT = signal.SIGRTMIN + 3


def unsupported() -> str | None:
    """Return why no machine can run here; None: it can."""
    if os.geteuid() != 0:
        return "needs root"
    needed = ("unshare", "nsenter", "ip", "ps", "dbus-daemon")
    missing = [name for name in needed if not shutil.which(name)]
    if missing or not Path("/lib/systemd/systemd").exists():
        return f"needs systemd and dbus (missing: {', '.join(missing) or 'systemd'})"
    hierarchies = _hierarchies()
    if not hierarchies or not all(os.access(one, os.W_OK) for one in hierarchies):
        return "control groups are not to be written here"
    probe = ["unshare", *_UNSHARED, "--fork", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"the kernel forbids namespaces: {done.stderr.strip()}" if done.returncode else None


class SystemdMachine(Booted):
    """One machine of namespaces."""

    def __init__(self, *, environment: Mapping[str, str] | None = None) -> None:
        """Make its folder; *environment* is every service's."""
        super().__init__(environment=environment)
        self.shared = self.folder / "shared"
        """Seen inside as /shared, writable by every user there."""
        self.shared.mkdir()
        self.shared.chmod(0o777)
        self._name = self.folder.name
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self) -> None:
        """Boot, and return when systemd says that it runs."""
        for cgroup in self._own_cgroups():
            cgroup.mkdir()
            _give_controllers(cgroup)
        log = (self.folder / "console.log").open("wb")
        inside = [sys.executable, "-I", str(Path(__file__).with_name("systemd_inside.py"))]
        command = ["unshare", *_UNSHARED, "--fork", "--kill-child=SIGKILL", *inside]
        # Into its cgroups first: the new cgroup namespace has where the process is as its root.
        enter = " && ".join(f"echo $$ > {own}/cgroup.procs" for own in self._own_cgroups())
        with log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f'{enter} && exec "$@"', "sh", *command, str(self.folder),
                 *self._binds()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._pid = wait_until(self._find_init, lambda: f"systemd began\n{self.console()}", 20)
        wait_until(self._booted, lambda: f"systemd has booted\n{self.console()}", 30)

    def stop(self) -> None:
        """Shut it down; safe twice."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, _HALT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()  # and with it, by --kill-child, all that is inside
            self._process.wait()
            self._process = None
        for own in self._own_cgroups():
            wait_until(lambda own=own: _removed(own), f"{own} is empty", 10)
        self._remove_folder()

    def command(self, *words: str) -> list[str]:
        """Return what runs *words* inside, from here."""
        return ["nsenter", "-t", str(self._pid), *_ENTERED, "--", *words]

    def run(self, *words: str, timeout: float = 60, check: bool = True) -> str:
        """Run a command inside as root and return what it printed, errors too."""
        done = subprocess.run(
            self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False, env=ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == 0 or not check, f"{words}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def outside(self, path: str) -> Path:
        """Return where a path of the machine is seen from here."""
        return Path(f"/proc/{self._pid}/root{path}")

    def _find_init(self) -> int:
        assert self._process is not None
        assert self._process.poll() is None, self.console()
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                    return int(pid)
        return 0

    def _booted(self) -> bool:
        state = self.run("systemctl", "is-system-running", check=False).strip()
        return state in {"running", "degraded"}

    def _binds(self) -> list[str]:
        binds = {**self._python_binds(), str(self.shared): "/shared"}
        return [f"{here}:{inside}" for here, inside in binds.items()]

    def _own_cgroups(self) -> list[Path]:
        return [one / self._name for one in _hierarchies()]


def _hierarchies() -> list[Path]:
    """Return where control groups are mounted: one place (v2), or one for each controller."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    mounted = [one for one in sorted(_CGROUPS.iterdir()) if one.is_mount()]
    return [one for one in mounted if not one.is_symlink()]


def _give_controllers(cgroup: Path) -> None:
    """Hand the new cgroup what its parent has: cores and nodes (v1), every controller (v2)."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if cgroup.parent.name == "cpuset":
            (cgroup / name).write_text((cgroup.parent / name).read_text())
    controllers = cgroup.parent / "cgroup.controllers"
    if controllers.exists() and cgroup.parent == _CGROUPS:
        for name in controllers.read_text().split():
            with suppress(OSError):
                (cgroup.parent / "cgroup.subtree_control").write_text(f"+{name}")


def _removed(cgroup: Path) -> bool:
    with suppress(OSError):
        for folder, _, _ in os.walk(cgroup, topdown=False):
            Path(folder).rmdir()
    return not cgroup.exists()
