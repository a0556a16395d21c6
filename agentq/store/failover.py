"""Follows a failover: closes every link to the old primary once the Sentinels name another.

A primary that died closes its links itself. One that was failed over on purpose does not: Sentinel
demotes it some ten seconds later, and until then it takes writes that its demotion throws away. A
client must therefore listen to the Sentinels. One thread per process and service does it for all
its clients, blocking or not: a socket that is shut down ends whatever waits on it.

    follow(links)  a new link -> listen for +switch-master -> shut down links to any other address
                   nothing to follow for `_LINGER_S` -> the thread ends
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis
from redis.asyncio import sentinel as asynchronous
from redis.sentinel import Sentinel, SentinelManagedConnection, SentinelManagedSSLConnection

logger = logging.getLogger(__name__)

Hosts = tuple[tuple[str, int], ...]

_PAUSE_S = 0.5
_LISTEN_S = 1.0
_LINGER_S = 60.0
_OWN_ERRORS = (redis.exceptions.RedisError, OSError)


class Watch:
    """What one process knows of one service: its links, and who the primary is."""

    def __init__(self, *, hosts: Hosts, service: str, options: dict[str, Any]) -> None:
        """Keep the parts; the thread runs from the first link on.

        Args:
            hosts: the Sentinels.
            service: the name they know the primary by.
            options: how to connect to a Sentinel, as redis-py takes it.
        """
        self._hosts = hosts
        self._service = service
        self._options = options
        self._links: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def follow(self, link: Any) -> None:
        """Shut *link*, a redis-py connection, down when it leads to an old primary."""
        with self._lock:
            self._links.add(link)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="agentq-sentinel", daemon=True
                )
                self._thread.start()

    def switched(self, primary: tuple[str, int]) -> int:
        """Shut down the links that do not lead to *primary*; return how many."""
        with self._lock:
            links = list(self._links)
        old = [link for link in links if (link.host, int(link.port)) != primary]
        return sum(_shut_down(link, primary) for link in old)

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            for host, port in self._hosts:
                with suppress(*_OWN_ERRORS), self._listening(host, port) as (sentinel, news):
                    idle_since = self._follow(sentinel, news, idle_since)
            with self._lock:
                if self._links:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > _LINGER_S:
                    self._thread = None
                    return
            time.sleep(_PAUSE_S)

    def _follow(self, sentinel: redis.Redis, news: Any, idle_since: float) -> float:
        """Act on what one Sentinel tells until it is gone or there is nothing to follow."""
        self._compare(sentinel)  # what was said while nobody listened
        while self._links or time.monotonic() - idle_since < _LINGER_S:
            if self._links:
                idle_since = time.monotonic()
            message = news.get_message(ignore_subscribe_messages=True, timeout=_LISTEN_S)
            if message and message["data"].split()[:1] == [self._service.encode()]:
                self._compare(sentinel)
        return idle_since

    def _compare(self, sentinel: redis.Redis) -> None:
        found = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        if not found:
            return  # this Sentinel does not know the service: the clients will say so
        primary = (_text(found[0]), int(found[1]))
        if count := self.switched(primary):
            logger.info(
                "the primary of %r is %s:%d now: closed %d links to the old one",
                self._service, *primary, count,
            )  # fmt: skip

    @contextmanager
    def _listening(self, host: str, port: int) -> Iterator[tuple[redis.Redis, Any]]:
        with redis.Redis(host=host, port=port, **self._options) as sentinel:
            news = sentinel.pubsub()
            try:
                news.subscribe("+switch-master")
                yield sentinel, news
            finally:
                news.close()


_watches: dict[tuple[Any, ...], Watch] = {}
_lock = threading.Lock()


def _watch_of(hosts: Hosts, service: str, asked: dict[str, Any]) -> Watch:
    """Return this process' watch of a service."""
    key = (os.getpid(), hosts, service)  # a forked child has the dictionary but not the thread
    with _lock:
        if key not in _watches:
            _watches[key] = Watch(hosts=hosts, service=service, options=asked)
        return _watches[key]


def client(
    hosts: Hosts, service: str, *, asked: dict[str, Any], options: dict[str, Any]
) -> redis.Redis:
    """Return a synchronous client of whatever server the Sentinels name as the primary.

    Args:
        hosts: the Sentinels.
        service: the name they know the primary by.
        asked: how to connect to a Sentinel, as redis-py takes it.
        options: how to connect to the primary.
    """
    watch = _watch_of(hosts, service, asked)
    kind: Any = SentinelManagedConnection
    if options.pop("ssl", False):
        kind = SentinelManagedSSLConnection

    class Connection(kind):  # type: ignore[misc]
        def connect_to(self, address: tuple[str, int]) -> None:
            super().connect_to(address)
            watch.follow(self)

    sentinels: Any = _Sentinels(hosts, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    return sentinels.master_for(service, connection_class=Connection, **options)  # type: ignore[no-any-return]


def async_client(
    hosts: Hosts, service: str, *, asked: dict[str, Any], options: dict[str, Any]
) -> redis.asyncio.Redis:
    """Return an asyncio client; otherwise as `client`."""
    watch = _watch_of(hosts, service, asked)
    tls = options.pop("ssl", False)
    kind: Any = (
        asynchronous.SentinelManagedSSLConnection if tls else asynchronous.SentinelManagedConnection
    )

    class Connection(kind):  # type: ignore[misc]
        async def connect_to(self, address: tuple[str, int]) -> None:
            await super().connect_to(address)
            watch.follow(self)

    sentinels: Any = _AsyncSentinels(hosts, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    return sentinels.master_for(service, connection_class=Connection, **options)  # type: ignore[no-any-return]


class _Sentinels(Sentinel):
    """Asked at each new link and no more: an idle link to each from every process is not kept."""

    def discover_master(self, service_name: str) -> Any:
        """Return the primary's address."""
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        finally:
            self.close()


class _AsyncSentinels(asynchronous.Sentinel):
    """Do as `_Sentinels`."""

    async def discover_master(self, service_name: str) -> Any:
        """Return the primary's address."""
        try:
            return await super().discover_master(service_name)
        finally:
            await self.aclose()


def _shut_down(link: Any, primary: tuple[str, int]) -> bool:
    """Shut down the socket of *link*, whatever waits on it; return whether it leads elsewhere.

    A copy of the descriptor, because the owner may close it meanwhile; its number may then be
    another link's, so that is looked at too.
    """
    with suppress(OSError, ValueError):
        sock = _socket_of(link)
        if sock is None:
            return False
        with socket.socket(fileno=os.dup(sock.fileno())) as copy:
            peer = copy.getpeername()
            if peer[:2] == primary or peer[1] != int(link.port):
                return False
            copy.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _socket_of(link: Any) -> Any:
    writer = getattr(link, "_writer", None)  # redis-py keeps its sockets to itself
    return writer.get_extra_info("socket") if writer is not None else getattr(link, "_sock", None)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
