"""An emulated machine of two memory nodes with two cores each, and systemd on pure control groups v2.

QEMU without KVM, since what is tried is the kernel's view and not its speed: boots in half a minute.
It sees this one's files through an overlay. Commands go over a virtual serial port to a shell inside,
one at a time. Needs root, and what `unsupported` names; nothing is fetched.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.booted import Booted
from tests.support.systemd_inside import MASKED
from tests.support.waiting import wait_until

VARIABLE = "AQ_TEST_KERNEL"
"""Names the folder that has boot/vmlinuz-* and lib/modules/*: unset, nobody has asked for this."""
NODE_MB = 1536
_QEMU, _BUSYBOX = "qemu-system-x86_64", "/bin/busybox"
_SHARES_FILES = Path("/usr/lib/qemu/virtiofsd")
_MODULES = (
    "virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
    "fuse", "virtiofs", "overlay", "virtio_console",
)  # fmt: skip
"""In the order of what needs what."""
_FILES = 20_000
_BOOT_S = 180
_STARTED = ("setpriv", "--pdeathsig", "KILL", "chrt", "--idle", "0")
"""Gone with us; and on cores that nobody wants, since it takes minutes of each."""
_SHELL = """\
exec 3<>"$(echo /dev/vport*p1)"
while IFS= read -r line <&3; do
  sh -c "$(echo "$line" | base64 -d)" </dev/null >/run/said 2>&1
  echo "$? $(base64 -w0 /run/said)" >&3
done
"""
_SHELL_UNIT = """\
[Unit]
DefaultDependencies=no
Requires=dbus.socket
After=basic.target dbus.socket
[Service]
Environment=HOME=/root
WorkingDirectory=/
ExecStart=/bin/sh /etc/test-shell
"""


def unsupported() -> str | None:
    """Return why no machine can be emulated here and what provides it; None: it can."""
    if VARIABLE not in os.environ:
        return "make numa KERNEL=DIR asks for it: some minutes of an emulated machine"
    if os.geteuid() != 0:
        return "needs root"
    programs = (_QEMU, _BUSYBOX, str(_SHARES_FILES), "chrt", "setpriv")
    if missing := [one for one in programs if not shutil.which(one)]:
        return (
            f"needs {', '.join(missing)}: apt-get install --no-install-recommends "
            "qemu-system-x86 qemu-system-common busybox-static (Debian 12)"
        )
    if _kernel() is None:
        return (
            f"no kernel image with its modules in {_root()}: apt-get download "
            "$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends/ {print $2}') && "
            "dpkg-deb -x linux-image-*.deb DIR, then make numa KERNEL=DIR"
        )
    return None


class NumaMachine(Booted):
    """One emulated machine."""

    def __init__(self, *, environment: Mapping[str, str] | None = None) -> None:
        """Make its folder; *environment* is every service's."""
        super().__init__(environment=environment)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._shell: socket.socket | None = None
        self._lay_system()

    def start(self) -> None:
        """Boot, and return when the shell inside answers."""
        initrd = self._initrd()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.folder / "shell.sock"))
            listener.listen()
            self._share_files()
            self._spawn("console", *self._emulator(initrd))
            listener.settimeout(_BOOT_S)
            self._shell, _ = listener.accept()
        state = self.run("systemctl", "is-system-running", "--wait", timeout=_BOOT_S, check=False)
        assert state.strip() in {"running", "degraded"}, self.console()

    def stop(self) -> None:
        """Switch it off and remove its folder; safe twice."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()
        if self._shell is not None:
            self._shell.close()
        self._remove_folder()

    def run(self, *words: str, timeout: float = 60, check: bool = True) -> str:
        """Run a command inside as root and return what it printed, errors too."""
        assert self._shell is not None
        self._shell.settimeout(timeout)
        answer = b""
        try:
            self._shell.sendall(base64.b64encode(shlex.join(words).encode()) + b"\n")
            while not answer.endswith(b"\n"):
                part = self._shell.recv(1 << 16)
                assert part, f"the machine is gone\n{self.console()}"
                answer += part
        except TimeoutError as error:
            raise AssertionError(f"{words}: not within {timeout:g} s\n{self.console()}") from error
        code, _, said = answer.decode().rstrip("\n").partition(" ")
        printed = base64.b64decode(said).decode(errors="replace")
        assert code == "0" or not check, f"{words}: {code}\n{printed}"
        return printed

    def read(self, path: str) -> str:
        """Return a file of the machine."""
        return self.run("cat", path)

    def _spawn(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*_STARTED, *command], cwd=self.folder, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    def _share_files(self) -> None:
        words = ("-o", "source=/", "-o", "cache=always", "-o", "sandbox=chroot")
        limit = ("prlimit", f"--nofile={_FILES}")  # each file seen inside is one
        self._spawn("files", *limit, str(_SHARES_FILES), "--socket-path=files.sock", *words)
        wait_until((self.folder / "files.sock").is_socket, "the host's files are offered", 20)

    def _emulator(self, initrd: Path) -> Iterator[str]:
        found = _kernel()
        assert found is not None
        yield from (_QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")
        yield from ("-M", "q35,accel=tcg", "-cpu", "max", "-m", f"{2 * NODE_MB}M")
        yield from ("-smp", "4,sockets=2,cores=2,threads=1")
        for node, cores in enumerate(("0-1", "2-3")):
            memory = f"memory-backend-memfd,id=node{node},size={NODE_MB}M,share=on"
            yield from ("-object", memory)
            yield from ("-numa", f"node,nodeid={node},cpus={cores},memdev=node{node}")
        yield from ("-numa", "dist,src=0,dst=1,val=21")
        yield from ("-kernel", str(found[0]), "-initrd", str(initrd))
        yield from ("-append", "console=ttyS0 quiet mitigations=off panic=-1")
        yield from ("-chardev", "socket,id=files,path=files.sock")
        yield from ("-device", "vhost-user-fs-pci,chardev=files,tag=host")
        yield from ("-device", "virtio-serial-pci", "-chardev", "socket,id=shell,path=shell.sock")
        yield from ("-device", "virtserialport,chardev=shell,nr=1")
        yield from ("-serial", "stdio")

    def _lay_system(self) -> None:
        units = self.files / "etc/systemd/system"
        wants = units / "basic.target.wants"
        wants.mkdir(parents=True)
        sockets = ("systemd-udevd-control.socket", "systemd-udevd-kernel.socket")
        for unit in (*MASKED, *sockets, "systemd-udev-trigger.service"):
            (units / unit).symlink_to("/dev/null")
        (units / "test-shell.service").write_text(_SHELL_UNIT)
        (wants / "test-shell.service").symlink_to("../test-shell.service")
        (self.files / "etc/test-shell").write_text(_SHELL)
        for empty in ("fstab", "machine-id"):
            (self.files / "etc" / empty).write_text("")

    def _initrd(self) -> Path:
        found = _kernel()
        assert found is not None
        root = self.folder / "initrd"
        for part in ("bin", "modules"):
            (root / part).mkdir(parents=True)
        shutil.copy(_BUSYBOX, root / "bin")
        shutil.copy(Path(__file__).with_name("numa_init"), root / "init")
        (root / "init").chmod(0o755)
        for module in _MODULES:
            with suppress(StopIteration):  # it is built in
                shutil.copy(next(found[1].rglob(f"{module}.ko")), root / "modules")
        binds = [shlex.join(("bind", *pair)) for pair in self._python_binds().items()]
        lines = [f"modules={shlex.quote(' '.join(_MODULES))}", f"folder={self.files}"]
        (root / "given").write_text("\n".join([*lines, "binds() {", *binds, "}", ""]))
        packed = self.folder / "initrd.cpio"
        with packed.open("wb") as output:
            names = "\n".join(str(one.relative_to(root)) for one in root.rglob("*"))
            pack = [_BUSYBOX, "cpio", "-o", "-H", "newc"]
            subprocess.run(pack, cwd=root, input=names.encode(), stdout=output, check=True)
        return packed


def _root() -> Path:
    return Path(os.environ[VARIABLE])


def _kernel() -> tuple[Path, Path] | None:
    """Return a kernel image and its modules; None: there is none, or its modules are packed."""
    for image in sorted((_root() / "boot").glob("vmlinuz-*"), reverse=True):
        modules = _root() / "lib/modules" / image.name.removeprefix("vmlinuz-")
        if any(modules.rglob("virtiofs.ko")):
            return image, modules
    return None
