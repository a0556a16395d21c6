"""TCP for a trial of kernel settings: they do not bear on a unix socket."""

from __future__ import annotations

import secrets
import socket

from agentq.store.address import parse
from agentq.store.client import Store
from agentq.store.embedded import EmbeddedServer


def over_loopback(server: EmbeddedServer) -> str:
    """Have *server* listen on a free port of this machine too; return the URL.

    With a password of its own: anyone on the machine can reach a port.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    password = secrets.token_urlsafe()
    store = Store(address=parse(server.url), timeout=None)
    for name, value in (("requirepass", password), ("bind", "127.0.0.1"), ("port", str(port))):
        store.command("CONFIG", "SET", name, value)
    store.close()
    return f"agentq://:{password}@127.0.0.1:{port}/0"
