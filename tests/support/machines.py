"""A second machine: a network namespace with a cable to this one that can be pulled out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

_SUBNETS = 1 << 14
"""Of 4 addresses each, in 198.18.0.0/16, which RFC 2544 keeps for tests."""


@dataclass(frozen=True)
class Machine:
    """The other machine; files are the same on both, only the network is not."""

    name: str
    here: str
    """This machine's address, as the other one sees it."""

    @property
    def inside(self) -> tuple[str, ...]:
        """What a command begins with that is to run there; it keeps its process id."""
        return ("nsenter", f"--net=/run/netns/{self.name}", "--")

    def unplug(self) -> None:
        """Pull the cable: nothing passes, and nobody is told."""
        _ip("link", "set", self.name, "down")

    def plug(self) -> None:
        """Put it back in."""
        _ip("link", "set", self.name, "up")


@contextmanager
def second_machine() -> Iterator[Machine]:
    """Make one; skip the test where the kernel or the user does not allow it."""
    number = os.getpid() % _SUBNETS
    subnet = f"198.18.{number >> 6}.{(number & 63) * 4}".rpartition(".")
    name = f"aqm{number}"
    if os.geteuid() or not shutil.which("ip") or not shutil.which("nsenter"):
        pytest.skip("a network namespace needs root, ip and nsenter")
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr}")
    here, there = (f"{subnet[0]}.{int(subnet[2]) + last}" for last in (1, 2))
    try:
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("addr", "add", f"{here}/30", "dev", name)
        _ip("link", "set", name, "up")
        for command in (f"addr add {there}/30 dev eth0", "link set eth0 up", "link set lo up"):
            _ip("-n", name, *command.split())
        yield Machine(name, here)
    finally:
        _ip("link", "delete", name)  # not only with the namespace, which lasts while it is used
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    program = shutil.which("ip") or "/sbin/ip"
    subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
