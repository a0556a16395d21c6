"""A machine that a test boots, with this one's Python, packages and checkout where services may read them.

Units and files go into `files` before `start`.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.worker_process import ROOT

BASE, VENV, SOURCE = "/opt/agentq/base", "/opt/agentq/venv", "/opt/agentq/src"
"""Inside: not below a home folder, which a hardened unit does not see."""
PYTHON = f"{VENV}/bin/python"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb"}
"""Of what is run inside: nothing of this process'."""


class Booted(ABC):
    """One machine from `start` to `stop`; `with` does both."""

    def __init__(self, *, environment: Mapping[str, str] | None = None) -> None:
        """Make its folder; *environment* is every service's."""
        self.folder = Path(tempfile.mkdtemp(prefix="aq-machine-", dir="/tmp"))
        self.files = self.folder / "files"
        """Laid over the root before the start."""
        self._lay_python(environment or {})

    @abstractmethod
    def start(self) -> None:
        """Boot, and return when systemd says that it runs."""

    @abstractmethod
    def stop(self) -> None:
        """Shut it down and remove the folder; safe twice."""

    @abstractmethod
    def run(self, *words: str, timeout: float = 60, check: bool = True) -> str:
        """Run a command inside as root and return what it printed, errors too."""

    def __enter__(self) -> Self:
        """Start."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def python(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        timeout: float = 100,
        check: bool = True,
    ) -> str:
        """Run Python inside, in the checkout, as root."""
        more = [f"{name}={value}" for name, value in (env or {}).items()]
        line = ["/usr/bin/env", "-C", SOURCE, *self._variables, *more, PYTHON, "-P", *words]
        return self.run(*line, timeout=timeout, check=check)

    def agentq(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        timeout: float = 100,
        check: bool = True,
    ) -> str:
        """Run agentq's command line inside, from the checkout, as root."""
        return self.python("-m", "agentq", *words, env=env, timeout=timeout, check=check)

    def show(self, unit: str, name: str) -> str:
        """Return one property of a unit."""
        return self.run("systemctl", "show", unit, "-p", name, "--value").strip()

    def journal(self, unit: str = "agentq-*", lines: int = 40) -> str:
        """Return the last of what units logged."""
        return self.run("journalctl", "-u", unit, "--no-pager", "-n", str(lines), check=False)

    def console(self) -> str:
        """Return what the machine said while it booted."""
        log = self.folder / "console.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else "nothing yet"

    def _remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lay_python(self, environment: Mapping[str, str]) -> None:
        """Make a virtual environment for inside: its Python, not its packages, is elsewhere."""
        venv = self.files / VENV.lstrip("/")
        (venv / "bin").mkdir(parents=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (venv / "bin/python").symlink_to(f"{BASE}/bin/{version}")
        (venv / "pyvenv.cfg").write_text(f"home = {BASE}/bin\n")
        variables = {"PYTHONPATH": SOURCE, "LD_LIBRARY_PATH": f"{BASE}/lib", **environment}
        self._variables = [f"{name}={value}" for name, value in variables.items()]
        manager = self.files / "etc/systemd/system.conf.d/test.conf"
        manager.parent.mkdir(parents=True)
        quoted = " ".join(f'"{one}"' for one in self._variables)
        manager.write_text(f"[Manager]\nDefaultEnvironment={quoted}\n")

    def _python_binds(self) -> dict[str, str]:
        """Return folder here -> where it is inside."""
        packages = Path(sysconfig.get_path("purelib"))
        inside = f"{VENV}/lib/{packages.parent.name}/site-packages"
        return {sys.base_prefix: BASE, str(packages): inside, str(ROOT): SOURCE}
