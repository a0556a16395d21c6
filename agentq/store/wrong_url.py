"""What a broker's URL lacks, or its server, where what that does shows it."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence

import redis.exceptions

from agentq.settings.installed import has_units
from agentq.store.address import Address
from agentq.store.embedded import SOCKET_NAME

NO_REDIS: type[Exception] = redis.exceptions.InvalidResponse
"""An answer in no protocol of Redis': a proxy's page, a TLS alert. As a rule it is over soon, so it
is a link that failed; redis-py makes it an error of its own."""
LINK_FAILED = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, NO_REDIS)
_TLS_ALERT = r'"\x15"'
"""How hiredis writes the first byte of a server's answer to who speaks no TLS to it."""
_NAMED = (
    "name the CA that signed it by ?ssl_ca_certs=FILE, and the host as it is written in the "
    "certificate"
)
_TLS_PORT = "; is that its TLS port (agentq+tls://)?"


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
    return _TLS_PORT if cut and address.scheme == "agentq" else ""


def no_redis(address: Address, said: BaseException) -> str:
    """Return what is said of an answer that is `NO_REDIS`."""
    hint = _TLS_PORT if _TLS_ALERT in str(said) and address.scheme == "agentq" else ""
    return f"what answers at {address} is no Redis: {said}{hint}"


def refused(address: Address) -> str:
    """Return what it may be where the machine is there and nobody listens."""
    if address.service:
        return (
            f"the primary {address.service!r} that the Sentinels of {address} name does not "
            "listen: it is down, or a failover is under way"
        )
    nobody = f"nothing listens at {address}"
    if address.path.endswith(f"/{SOCKET_NAME}"):  # found: broker.url need not be set
        start = "systemctl start agentq-broker" if has_units() else "agentq up"
        return f"{nobody}: the embedded server there has ended; `{start}` starts it"
    if has_units():
        return f"{nobody}: systemctl status redis-server, or valkey-server, on its machine"
    return f"{nobody}: start it, or unset broker.url to use the embedded server of `agentq up`"


def not_trusted(address: Address, causes: Sequence[BaseException]) -> str:
    """Return what is said of a TLS link that did not come about."""
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"the certificate of the broker at {address} is refused: {cause.verify_message}; "
                f"{_renewed(cause) or _NAMED}"
            )
    return f"TLS with the broker at {address} failed: {causes[0]}"


def _renewed(refused: ssl.SSLCertVerificationError) -> str:
    """Return what mends a CA that Python takes until 3.12 and not from 3.13 on."""
    if "key usage extension" not in refused.verify_message:
        return ""
    return (
        "Python 3.13 and newer want keyUsage in the CA's own certificate: make it anew (remove "
        "ca.crt, run deploy/redis/certificate), restart the server, give the new ca.crt to every "
        "machine"
    )
