"""Broker URLs: what `agentq://`, `+unix`, `+tls` and `+sentinel` mean, and how to connect.

The forms::

    agentq://[user[:password]@]host[:port][/db][?cell=main]
    agentq+tls://...      the same over TLS (?ssl_ca_certs=FILE&ssl_certfile=F&ssl_keyfile=F)
    agentq+unix://[[user]:password@]/path/to.sock[?db=0&cell=main]
    agentq+sentinel://host[:port][,host[:port]..]/service[?db=0&cell=main]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from agentq.errors import SettingsError
from agentq.store import fail_points

SCHEMES = ("agentq", "agentq+tls", "agentq+unix", "agentq+sentinel")
_DEFAULT_PORT = 6379
_SENTINEL_PORT = 26379
_CONNECT_SECONDS = 2.0
_ASYNC_CONNECTIONS = 10_000
"""Each coroutine that waits for a run's end blocks a connection of its own."""


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
    tls = tuple((key, options.pop(key)) for key in sorted(options) if key.startswith("ssl_"))
    if options:
        raise ValueError(f"option {next(iter(options))!r} is unknown")
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
        options |= {"unix_socket_path": address.path}
    else:
        connect = min(_CONNECT_SECONDS, seconds) if seconds else _CONNECT_SECONDS
        options |= {"socket_connect_timeout": connect, "socket_keepalive": True}
    if address.scheme == "agentq+tls":
        options |= {"ssl": True, "ssl_cert_reqs": "required", **dict(address.tls)}
    return options


def connect(address: Address, *, timeout: timedelta | None) -> redis.Redis:
    """Return a synchronous client; nothing is connected yet.

    Retrying is the caller's: redis-py's own would hide a lost reply from the fence.
    """
    options = _options(address, timeout) | {"retry": Retry(NoBackoff(), 0)}
    client: redis.Redis
    if address.scheme == "agentq+sentinel":
        sentinel = Sentinel(address.hosts, socket_timeout=options["socket_timeout"])
        client = sentinel.master_for(address.service, **options)
    else:
        if not address.path:
            options |= {"host": address.hosts[0][0], "port": address.hosts[0][1]}
        client = redis.Redis(**options)
    fail_points.arm(client)
    return client


def connect_async(address: Address, *, timeout: timedelta | None) -> redis.asyncio.Redis:
    """Return an asyncio client; nothing is connected yet."""
    options = _options(address, timeout) | {"retry": AsyncRetry(NoBackoff(), 0)}
    client: redis.asyncio.Redis
    if address.scheme == "agentq+sentinel":
        sentinel = AsyncSentinel(address.hosts, socket_timeout=options["socket_timeout"])
        client = sentinel.master_for(address.service, **options)
    else:
        if not address.path:
            options |= {"host": address.hosts[0][0], "port": address.hosts[0][1]}
        client = redis.asyncio.Redis(**options, max_connections=_ASYNC_CONNECTIONS)
    fail_points.arm_async(client)
    return client
