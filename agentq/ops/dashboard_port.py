"""Where the dashboard will listen, looked at before anything starts."""

from __future__ import annotations

import errno
import socket

from agentq.errors import AddressInUse


def is_taken(host: str, port: int) -> bool:
    """Tell whether somebody has that port; other reasons the dashboard tells by itself."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()  # one that is bound and does not listen yet shows only here
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def address_in_use(host: str, port: int) -> AddressInUse:
    """Return what is said of a port that somebody has."""
    return AddressInUse(
        f"the dashboard cannot listen on {host}:{port}: port {port} is in use; end what listens "
        "there, or choose another: --port, or dashboard.port in the settings "
        f"(AGENTQ_DASHBOARD__PORT={port + 1})"
    )
