"""What a broker's URL lacks, where what the server does shows it."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence

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


def not_trusted(address: Address, causes: Sequence[BaseException]) -> str:
    """Return what is said of a TLS link that did not come about."""
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"the certificate of the broker at {address} is refused: {cause.verify_message}; "
                "name the CA that signed it by ?ssl_ca_certs=FILE, and the host as it is written "
                "in the certificate"
            )
    return f"TLS with the broker at {address} failed: {causes[0]}"
