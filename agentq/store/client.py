"""One cell's Redis as producers and workers see it: calls with a time limit and typed errors.

`Store` is synchronous and safe between threads, `AsyncStore` belongs to one event loop. Both ask
with their first call whether the server has the functions, and load them where it lacks them, then
or later, so that a fresh or flushed server needs no set-up in development (`library`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any

import redis
import redis.asyncio
import redis.exceptions
import redis.sentinel
from hiredis import pack_command

from agentq.clock import format_duration, wall_ms
from agentq.errors import BrokerUnavailable, FunctionsMissing
from agentq.store import library, replication, skew, wrong_url
from agentq.store.address import Address, connect, connect_async
from agentq.store.calls import Call
from agentq.store.keys import Keys
from agentq.store.replication import replicas_of

_UNREACHABLE = (*wrong_url.LINK_FAILED, OSError)
_OF_THE_SERVER = (
    *_UNREACHABLE,  # loading its data is one of them
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
)
_PASSING = ("MISCONF", "UNBLOCKED", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "BUSY ")
"""How errors begin that say what the whole server can not do at the moment: write to its disk, go
on blocking (it has become a replica), reach enough replicas, run a function beside a slow one."""


_FORBIDDEN = ("ACL failure in script", "The user executing the script can't run")
"""How errors begin of a function that did what its caller may not: of newer servers, of 7.0."""

_SUBMITTING = ("aq1_enqueue", "aq1_open")

_CLOSED = "unable to perform operation on"
"""How uvloop answers who writes to a connection that the other side has just closed."""
_CUT_SHOWS_S = 0.5
"""A connection that was cut while nobody used it fails at its first use."""


@contextmanager
def _cut_at_once() -> Iterator[None]:
    """Let a cut link pass, unless it took so long that a second wait would go beyond the limit."""
    began = time.monotonic()
    try:
        yield
    except redis.exceptions.ConnectionError:
        if time.monotonic() - began > _CUT_SHOWS_S:
            raise


@contextmanager
def _translated(address: Address, timeout: timedelta | None, what: str) -> Iterator[None]:
    try:
        yield
    except redis.exceptions.AuthenticationError as error:
        raise BrokerUnavailable(wrong_url.login(address, error)) from None
    except _UNREACHABLE as error:
        raise BrokerUnavailable(_unreachable(address, timeout, what, error)) from None
    except redis.exceptions.ResponseError as error:
        if (said := _refusal(error)) is None:
            raise
        raise BrokerUnavailable(f"the broker at {address} {said}") from None
    except RuntimeError as error:
        if not str(error).startswith(_CLOSED):
            raise
        raise BrokerUnavailable(f"the link to {address} was cut: {error}") from None


def _refusal(error: redis.exceptions.ResponseError) -> str | None:
    """Return what is said of a server that does not serve; None: it is about this call alone."""
    text = str(error)
    if isinstance(error, redis.exceptions.OutOfMemoryError):
        return "is full (maxmemory) and accepts no new work"
    if isinstance(error, redis.exceptions.ReadOnlyError):
        return "is a replica and takes no writes"
    if isinstance(error, redis.exceptions.NoPermissionError) or text.startswith(_FORBIDDEN):
        return f"forbids this user what agentq needs ({text}): `agentq broker acl` prints the rules"
    return f"can not serve now: {text}" if text.startswith(_PASSING) else None


def _unreachable(
    address: Address, timeout: timedelta | None, what: str, error: BaseException
) -> str:
    causes = tuple(_causes(error))
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return wrong_url.not_trusted(address, causes)
    if any(isinstance(cause, ConnectionRefusedError | FileNotFoundError) for cause in causes):
        return wrong_url.refused(address)
    if isinstance(error, redis.exceptions.TimeoutError | TimeoutError):
        limit = f" within {format_duration(timeout)}" if timeout else ""
        text = f"the broker at {address} did not answer{limit}"
        text += "; is that its TLS port?" if address.scheme == "agentq+tls" else ""
    elif isinstance(error, wrong_url.NO_REDIS):
        text = wrong_url.no_redis(address, error)
    elif isinstance(error, redis.sentinel.MasterNotFoundError):
        return f"no Sentinel of {address} answers, or none knows a primary {address.service!r}"
    elif any(isinstance(cause, socket.gaierror) for cause in causes):
        return f"the broker at {address} can not be reached: {causes[-1]}"
    else:
        text = f"the broker at {address} can not be reached: {error}"
        text += wrong_url.scheme(address, causes)
    if what in _SUBMITTING:
        text += "; it may have taken the work all the same: the same key or task id is taken once"
    return text


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _answers(replies: list[Any]) -> list[Any]:
    """Return *replies*, unless the server as a whole can not serve: that answers no single call."""
    for reply in replies:
        if isinstance(reply, Exception) and (
            isinstance(reply, _OF_THE_SERVER) or str(reply).startswith(_PASSING)
        ):
            raise reply
    return replies


def _lack_functions(replies: list[Any]) -> bool:
    return any(isinstance(reply, Exception) and library.is_missing(reply) for reply in replies)


class Store:
    """The synchronous side: producers, tools, the heartbeat."""

    def __init__(self, *, address: Address, timeout: timedelta | None) -> None:
        """Keep the parts; nothing is connected yet. *timeout* bounds every call, None never."""
        self.address = address
        self.timeout = timeout
        self.keys = Keys(address.cell)
        self._knows_server = False
        self._may_load = True
        self._has_replica = False

    @cached_property
    def client(self) -> redis.Redis:
        """Return the client, connected on first use."""
        return connect(self.address, timeout=self.timeout)

    def call(self, call: Call) -> Any:
        """Send one call and return its answer.

        A connection that turns out to be cut is replaced and the call sent once more: each of the
        functions that come here may be repeated (deduplicated, fenced, or staged by offset).

        Raises:
            BrokerUnavailable: no answer in time, a full or read-only server.
        """
        began = time.monotonic()
        with _translated(self.address, self.timeout, str(call[1])):
            self._get_to_know()
            try:
                return self.client.execute_command(*call)
            except redis.exceptions.TimeoutError:
                raise
            except redis.exceptions.ConnectionError:
                if time.monotonic() - began > _CUT_SHOWS_S:
                    raise  # a second wait would go beyond the limit
                return self.client.execute_command(*call)
            except redis.exceptions.ResponseError as error:
                if not library.is_missing(error):
                    raise
                self._ensure()
                return self.client.execute_command(*call)

    def pipeline(self, calls: Sequence[Call]) -> list[Any]:
        """Send *calls* in one round trip; an answer may be an exception of its own call.

        Raises:
            BrokerUnavailable: no answer in time, a full or read-only server; some of the calls
                may have been served.
        """
        with _translated(self.address, self.timeout, "pipeline"):
            if any(call[0] == "FCALL" for call in calls):  # who only looks needs no functions
                self._get_to_know()
            replies = self._pipelined(calls)
            if _lack_functions(replies):
                self._ensure()
                replies = self._pipelined(calls)
            return _answers(replies)

    def replicated(self, calls: Sequence[Call]) -> tuple[list[Any], bool]:
        """Send *calls* in one round trip; return the answers and whether a replica has the writes.

        Raises:
            NotReplicated: no replica is attached; nothing was sent.
            BrokerUnavailable: as `pipeline`.
        """
        if not self._has_replica:
            self._has_replica = any(
                replica.online for replica in replicas_of(self.command("INFO", "replication"))
            )
        if not self._has_replica:
            raise replication.none_attached(self.address)
        replies = self.pipeline([*calls, *replication.confirmation(self.keys, self.timeout)])
        self._has_replica = replication.confirmed(replies[-1])  # else look, before the next
        return replies[: len(calls)], self._has_replica

    def _get_to_know(self) -> None:
        """With the first call: no older functions are called, and a wrong clock is known.

        That one is to be known, not to matter.
        """
        if self._knows_server:
            return
        asked_ms = wall_ms()
        with _cut_at_once():  # told by the call itself
            skew.learn(self.address, self._ensure().now_ms, asked_ms)
            self._knows_server = True

    def _ensure(self, *, edited: bool = False) -> library.Functions:
        try:
            return library.ensure(self.client, edited=edited, may_load=self._may_load)
        except FunctionsMissing:
            self._may_load = False  # not 60 KB at each try
            raise

    def _pipelined(self, calls: Sequence[Call]) -> list[Any]:
        pipe = self.client.pipeline(transaction=False)
        for call in calls:
            pipe.execute_command(*call)
        return pipe.execute(raise_on_error=False)

    def command(self, *args: Any, **options: Any) -> Any:
        """Send one plain command; *options* are of the client's parser. Errors as in `call`."""
        with _translated(self.address, self.timeout, str(args[0])):
            return self.client.execute_command(*args, **options)

    def ensure_functions(self) -> library.Functions:
        """Load the functions where they are missing, older, or other code of this revision.

        Raises:
            FunctionsMissing: this user may not load them.
            BrokerUnavailable: as in `call`.
        """
        with _translated(self.address, self.timeout, "FUNCTION LOAD"):
            return self._ensure(edited=True)

    def find_functions(self) -> library.Functions | None:
        """Return which functions the server has, loading nothing; errors as in `call`."""
        with _translated(self.address, self.timeout, "FCALL"):
            return library.find(self.client)

    def close(self) -> None:
        """Close the connections; safe twice."""
        if "client" in self.__dict__:
            self.client.close()
            del self.__dict__["client"]


class AsyncStore:
    """The asyncio side, of one event loop: workers and async callers."""

    def __init__(self, *, address: Address, timeout: timedelta | None) -> None:
        """Keep the parts; nothing is connected yet. *timeout* bounds every call, None never."""
        self.address = address
        self.timeout = timeout
        self.keys = Keys(address.cell)
        self.on_connect: Callable[[], None] | None = None
        """Called at each new link; set before the first use."""
        self._knows_server = False
        self._may_load = True
        self._has_replica = False

    @cached_property
    def client(self) -> redis.asyncio.Redis:
        """Return the client, connected on first use."""
        return connect_async(self.address, timeout=self.timeout, on_connect=self.on_connect)

    async def call(self, call: Call) -> Any:
        """Send one call and return its answer; errors as in `Store.call`."""
        with _translated(self.address, self.timeout, str(call[1])):
            await self._get_to_know()
            try:
                return await self.client.execute_command(*call)
            except redis.exceptions.ResponseError as error:
                if not library.is_missing(error):
                    raise
                await self._ensure()
                return await self.client.execute_command(*call)

    async def _get_to_know(self) -> None:
        """Do what the synchronous one does."""
        if self._knows_server:
            return
        asked_ms = wall_ms()
        with _cut_at_once():
            skew.learn(self.address, (await self._ensure()).now_ms, asked_ms)
            self._knows_server = True

    async def _ensure(self) -> library.Functions:
        try:
            return await library.aensure(self.client, may_load=self._may_load)
        except FunctionsMissing:
            self._may_load = False
            raise

    async def pipeline(self, calls: Sequence[Call]) -> list[Any]:
        """Send *calls* in one round trip; an answer may be an exception of its own call.

        Raises:
            BrokerUnavailable: no answer in time, a full or read-only server; some of the calls
                may have been served.
        """
        with _translated(self.address, self.timeout, "pipeline"):
            replies = await self._pipelined(calls)
            if _lack_functions(replies):
                await self._ensure()
                replies = await self._pipelined(calls)
            return _answers(replies)

    async def replicated(self, calls: Sequence[Call]) -> tuple[list[Any], bool]:
        """Send *calls* and wait for a replica; as `Store.replicated`."""
        if not self._has_replica:
            info = await self.command("INFO", "replication")
            self._has_replica = any(replica.online for replica in replicas_of(info))
        if not self._has_replica:
            raise replication.none_attached(self.address)
        replies = await self.pipeline([*calls, *replication.confirmation(self.keys, self.timeout)])
        self._has_replica = replication.confirmed(replies[-1])
        return replies[: len(calls)], self._has_replica

    async def _pipelined(self, calls: Sequence[Call]) -> list[Any]:
        """Send and read by hand: redis-py's asyncio pipeline packs in Python, 20 us a call."""
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        pool = self.client.connection_pool
        connection = await pool.get_connection()
        try:
            packed = [pack_command(call) for call in calls]  # type: ignore[arg-type]  # its stub: one
            await connection.send_packed_command(packed)
            # redis-py sends by wait_for; Python 3.11's forgets a cancel that comes as it ends.
            if task is not None and task.cancelling() > cancels:
                raise asyncio.CancelledError  # noqa: TRY301 -- as if it had not
            return [await _reply(connection) for _ in calls]
        except BaseException:
            await connection.disconnect(nowait=True)  # replies to come belong to nobody
            raise
        finally:
            await pool.release(connection)

    async def command(self, *args: Any) -> Any:
        """Send one plain command; errors as in `call`."""
        with _translated(self.address, self.timeout, str(args[0])):
            return await self.client.execute_command(*args)

    async def close(self) -> None:
        """Close the connections; safe twice."""
        if "client" in self.__dict__:
            client = self.__dict__.pop("client")
            # A server that hangs must not hold up the shutdown.
            try:
                await asyncio.wait_for(client.aclose(), 1.0)
            except (TimeoutError, *_UNREACHABLE):
                pass


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except redis.exceptions.ResponseError as error:
        return error
