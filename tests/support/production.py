"""A server started with the files of `deploy/redis/`: only paths, addresses and passwords differ."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import redis

from agentq.ops.acl import PASSWORD, Role
from tests.support.failover import HOST, Process, free_port
from tests.support.redis_server import PROGRAM
from tests.support.tls import Certificate
from tests.support.worker_process import ROOT

FILES = ROOT / "deploy/redis"


class Production:
    """The server; each role's password is its name with an s."""

    def __init__(
        self,
        folder: Path,
        *,
        own: Certificate | None,
        program: str | None,
        host: str = HOST,
        more: str = "",
    ) -> None:
        """Take a short *folder*: a socket is in it. Without *own* the build can not speak TLS.

        *more*: a line for one more user.
        """
        self.folder, self.host, self.own = folder, host, own
        self.port = free_port()
        self.socket = folder / "redis.sock"
        (folder / "users.acl").write_text(self._users() + more)
        (folder / "redis.conf").write_text(self._configuration())
        self.process = Process(
            [str(folder / "redis.conf")], folder=folder, port=self.port, program=program or PROGRAM,
            unix_socket_path=str(self.socket), username="agentq-admin", password=f"{Role.ADMIN}s",
        )  # fmt: skip

    @property
    def admin(self) -> redis.Redis:
        """A connection of the admin."""
        return self.process.client

    def _users(self) -> str:
        lines = (FILES / "users.acl").read_text().splitlines(keepends=True)
        roles = dict(zip(Role, lines[1:], strict=True))
        return lines[0] + "".join(
            line.replace(f">{PASSWORD}", f">{role}s") for role, line in roles.items()
        )

    def _configuration(self) -> str:
        changed: Mapping[str, str] = {
            "bind": self.host, "tls-port": str(self.port), "unixsocket": str(self.socket),
            "aclfile": str(self.folder / "users.acl"), "dir": str(self.folder),
        }  # fmt: skip
        if self.own:
            changed |= {
                "tls-cert-file": str(self.own.certificate), "tls-key-file": str(self.own.key),
                "tls-ca-cert-file": str(self.own.authority),
            }  # fmt: skip
        lines = []
        for line in (FILES / "agentq.conf").read_text().splitlines():
            name = line.partition(" ")[0]
            if self.own or not name.startswith("tls-"):
                lines.append(f"{name} {changed[name]}" if name in changed else line)
        return "\n".join(lines) + "\n"

    def url(self, role: Role) -> str:
        """Return the address as this role writes it: over TLS, else by the socket."""
        login = f"agentq-{role}:{role}s"
        if self.own is None:
            return f"agentq+unix://{login}@{quote(str(self.socket))}"
        authority = quote(str(self.own.authority))
        return f"agentq+tls://{login}@{self.host}:{self.port}/0?ssl_ca_certs={authority}"

    def connection(self, role: Role) -> redis.Redis:
        """Return a bare connection of a role, by the socket."""
        return redis.Redis(
            unix_socket_path=str(self.socket), username=f"agentq-{role}", password=f"{role}s",
            decode_responses=True,
        )  # fmt: skip

    def refused(self) -> list[str]:
        """Return what users were refused so far; a driver's greeting is not needed."""
        return [
            f"{entry['username']} {entry['context']} {entry['object']}"
            for entry in self.admin.acl_log()
            if entry["object"] != "client|setinfo"
        ]


@contextmanager
def production_server(
    *,
    own: Certificate | None = None,
    program: str | None = None,
    host: str = HOST,
    more: str = "",
) -> Iterator[Production]:
    """Run one until the block ends; arguments as `Production` has them."""
    with tempfile.TemporaryDirectory(prefix="aq-prod-", dir="/tmp") as folder:
        server = Production(Path(folder), own=own, program=program, host=host, more=more)
        try:
            server.process.start()
            yield server
        finally:
            server.process.kill()
