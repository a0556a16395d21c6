"""Broker URLs: what `agentq://`, `+unix`, `+tls` and `+sentinel` mean, and how to connect.

The forms::

    agentq://[user[:password]@]host[:port][/db][?cell=main]
    agentq+tls://...      the same over TLS (?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE);
                          the certificate and its host name are always checked
    agentq+unix://[[user]:password@]/path/to.sock[?db=0&cell=main]
    agentq+sentinel://host[:port][,host[:port]..]/service[?db=0&cell=main]
                          the primary that the Sentinels name; login and database are the primary's;
                          with ?ssl_ca_certs=FILE primary and Sentinels speak TLS
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from agentq.errors import SettingsError
from agentq.store import fail_points, failover

SCHEMES = ("agentq", "agentq+tls", "agentq+unix", "agentq+sentinel")
_DEFAULT_PORT = 6379
_SENTINEL_PORT = 26379
_CONNECT_SECONDS = 2.0
_SENTINEL_SECONDS = 1.0
"""A Sentinel that is silent for so long is passed over for the next."""
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_ASYNC_CONNECTIONS = 10_000
"""Each coroutine that waits for a run's end blocks a connection of its own."""
_LOOPBACK = ("127.", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a cell is; the password stays out of `str` and `repr`."""

    scheme: str
    cell: str = "main"
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return the URL without its password."""
        if self.scheme == "agentq+unix":
            return f"{self.scheme}://{self.path}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{self.scheme}://{hosts}/{self.service or self.db}"

    @property
    def local(self) -> bool:
        """Whether the server is on this machine, as far as this tells."""
        return self.scheme == "agentq+unix" or all(is_loopback(host) for host, _ in self.hosts)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches *host*."""
    return host.startswith(_LOOPBACK)


def parse(url: str, *, cell: str = "main") -> Address:
    """Return the address that *url* names; `?cell=` beats *cell*.

    Raises:
        SettingsError: for another scheme, a missing host, path or service, a bad port or option.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise SettingsError(
            f"broker.url {_masked(url)!r}: scheme {scheme!r} is not one of {', '.join(SCHEMES)}; "
            "write agentq://127.0.0.1:6379/0 or agentq+unix:///path/to.sock"
        )
    try:
        return _parse(scheme, rest, cell)
    except ValueError as error:
        raise SettingsError(f"broker.url {_masked(url)!r}: {error}") from error


def _parse(scheme: str, rest: str, cell: str) -> Address:
    parts = urlsplit(f"//{rest}")
    options = dict(parse_qsl(parts.query))
    cell = options.pop("cell", cell)
    db = int(options.pop("db", options.pop("virtual_host", "0")))
    tls = tuple((key, options.pop(key)) for key in _TLS_OPTIONS if key in options)
    if options:
        raise ValueError(f"option {next(iter(options))!r} is unknown")
    if tls and scheme not in ("agentq+tls", "agentq+sentinel"):
        raise ValueError(f"{tls[0][0]} is for agentq+tls:// and agentq+sentinel://")
    login, _, hostlist = parts.netloc.rpartition("@")
    username, _, password = (unquote(part) or None for part in login.partition(":"))
    if scheme == "agentq+unix":
        if hostlist or not parts.path:
            raise ValueError("the socket's path is missing: agentq+unix:///path/to.sock")
        return Address(
            scheme, cell, path=unquote(parts.path), db=db, username=username, password=password
        )
    sentinel = scheme == "agentq+sentinel"
    hosts = tuple(_host(item, sentinel=sentinel) for item in hostlist.split(",") if item)
    if not hosts:
        raise ValueError("the host is missing")
    service = parts.path.strip("/") if sentinel else ""
    if sentinel and not service:
        raise ValueError("the Sentinel service's name is missing: agentq+sentinel://host/NAME")
    if not sentinel and parts.path.strip("/"):
        db = int(parts.path.strip("/"))
    return Address(
        scheme,
        cell,
        hosts=hosts,
        service=service,
        db=db,
        username=username,
        password=password,
        tls=tls,
    )


def _host(item: str, *, sentinel: bool) -> tuple[str, int]:
    parts = urlsplit(f"//{item}")
    if not parts.hostname:
        raise ValueError(f"{item!r} names no host")
    return parts.hostname, parts.port or (_SENTINEL_PORT if sentinel else _DEFAULT_PORT)


def _masked(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://***@{tail}" if at else url


def _options(address: Address, timeout: timedelta | None) -> dict[str, Any]:
    seconds = timeout.total_seconds() if timeout else None
    options: dict[str, Any] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": seconds,
    }
    if address.scheme == "agentq+unix":
        return options | {"unix_socket_path": address.path}
    connect = min(_CONNECT_SECONDS, seconds) if seconds else _CONNECT_SECONDS
    options |= {"socket_connect_timeout": connect, "socket_keepalive": True, **_tls(address)}
    if address.scheme != "agentq+sentinel":
        options |= {"host": address.hosts[0][0], "port": address.hosts[0][1]}
    return options


def _tls(address: Address) -> dict[str, Any]:
    """Return redis-py's options for TLS; none where the address asks for none.

    Raises:
        SettingsError: a file that the address names can not be read.
    """
    if address.scheme != "agentq+tls" and not address.tls:
        return {}
    for option, file in address.tls:
        if not Path(file).is_file():
            raise SettingsError(f"broker.url {address}: {option}={file} is no file")
    return {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True} | dict(
        address.tls
    )


def _sentinel_options(address: Address) -> dict[str, Any]:
    limits = {"socket_timeout": _SENTINEL_SECONDS, "socket_connect_timeout": _SENTINEL_SECONDS}
    return limits | _tls(address)


def connect(address: Address, *, timeout: timedelta | None) -> redis.Redis:
    """Return a synchronous client; nothing is connected yet.

    Retrying is the caller's: redis-py's own would hide a lost reply from the fence.

    Raises:
        SettingsError: a file that the address names can not be read.
    """
    options = _options(address, timeout) | {"retry": Retry(NoBackoff(), 0)}
    client: redis.Redis
    if address.scheme == "agentq+sentinel":
        asked = _sentinel_options(address)
        client = failover.client(address.hosts, address.service, asked=asked, options=options)
    else:
        client = redis.Redis(**options)
    fail_points.arm(client)
    return client


def connect_async(
    address: Address, *, timeout: timedelta | None, on_connect: Callable[[], None] | None = None
) -> redis.asyncio.Redis:
    """Return an asyncio client; nothing is connected yet; errors as in `connect`.

    *on_connect* is called at each new link, also one that replaces a link cut while nobody used it.
    """
    options = _options(address, timeout) | {"retry": AsyncRetry(NoBackoff(), 0)}
    options["max_connections"] = _ASYNC_CONNECTIONS
    if on_connect is not None:
        options["redis_connect_func"] = _greeting(on_connect)
    client: redis.asyncio.Redis
    if address.scheme == "agentq+sentinel":
        asked = _sentinel_options(address)
        client = failover.async_client(address.hosts, address.service, asked=asked, options=options)
    else:
        client = redis.asyncio.Redis(**options)
    fail_points.arm_async(client)
    return client


def _greeting(told: Callable[[], None]) -> Callable[[Any], Awaitable[None]]:
    async def greet(connection: Any) -> None:
        await connection.on_connect()
        told()

    return greet
