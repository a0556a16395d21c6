"""What a broker's URL lacks, where what the server does shows it."""

from __future__ import annotations

from collections.abc import Iterable

from agentq.store.address import Address


def login(address: Address, said: BaseException) -> str:
    """Return what is said of a server that lets this user not in."""
    if address.password is None:
        with_login = str(address).replace("://", "://USER:PASSWORD@", 1)
        return f"the broker at {address} asks for a user and password: {with_login}"
    user = address.username or "default"
    return f"the broker at {address} refuses user {user!r}: {said}"


def scheme(address: Address, causes: Iterable[BaseException]) -> str:
    """Return a hint for a server that cut the link; empty where the scheme is not to blame."""
    cut = any(isinstance(cause, ConnectionResetError) for cause in causes)
    return "; is that its TLS port (agentq+tls://)?" if cut and address.scheme == "agentq" else ""
