"""Ends the process, as kill -9 would, at a chosen moment of a chosen function call: for tests.

::

    AGENTQ_CRASH=name[:n][@file][!stop]

    name   <moment>-<function>, such as ``after-complete``; every function of the library has all
           three moments, so a new one has its points by itself:
               before   nothing of it, nor of what goes with it in one trip, has been sent
               sent     it has been sent and its answer not read: the server may have served it
               after    its answer was read and nothing done with it
    n      the n-th call in one process, the first if left out; a forked child counts on
    file   the process that is the first to create this file ends, and no other: without it each
           process that a supervisor starts anew ends there too
    stop   it does not end but stands still, as on SIGSTOP, until it gets SIGCONT

No setting: it stands in no file, and a production environment has no use for it. It is read when
a client is made: without it the connections are redis-py's own, and nothing here runs. With it
they are a subclass which sees every call of every client, since they all come from `address`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis.exceptions

from agentq.errors import SettingsError
from agentq.settings.sources import CRASH_VARIABLE
from agentq.store import library

MOMENTS = ("before", "sent", "after")
_FORM = re.compile(r"(?P<name>[a-z_-]+)(:(?P<n>[1-9][0-9]*))?(@(?P<file>[^!]+))?(?P<stop>!stop)?")
_CRLF = b"\r\n"

Packed = bytes | Iterable[bytes]
"""Commands as a connection sends them."""


def names() -> list[str]:
    """Return the name of every point."""
    return [f"{moment}-{name}" for name in library.functions() for moment in MOMENTS]


class FailPoint:
    """The chosen point of this process."""

    def __init__(
        self, *, name: str, n: int = 1, file: Path | None = None, stops: bool = False
    ) -> None:
        """Keep which point it is, at the how many-th call it is reached, and who may end there."""
        self.name = name
        self._n = n
        self._file = file
        self._signal = signal.SIGSTOP if stops else signal.SIGKILL
        self._passes = itertools.count(1)  # threads share it

    def pass_by(self, moment: str, functions: Iterable[str]) -> None:
        """End this process if these calls reach the point."""
        for function in functions:
            if f"{moment}-{function}" == self.name and next(self._passes) == self._n:
                self._end()

    def _end(self) -> None:
        if self._file is not None:
            try:
                self._file.touch(exist_ok=False)
            except FileExistsError:
                return
        os.kill(os.getpid(), self._signal)


@cache
def chosen() -> FailPoint | None:
    """Return the point that the environment names; None: it names none.

    Raises:
        SettingsError: there is no such point; the text names those there are.
    """
    text = os.environ.get(CRASH_VARIABLE)
    return parse(text) if text else None


def parse(text: str) -> FailPoint:
    """Return the point that *text* names.

    Raises:
        SettingsError: it has another form, or there is no such point.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise SettingsError(
            f"{CRASH_VARIABLE} = {text!r}: write name[:n][@file][!stop], such as after-complete:3"
        )
    if form["name"] not in names():
        raise SettingsError(
            f"{CRASH_VARIABLE}: there is no point {form['name']!r}: write "
            f"{'-, '.join(MOMENTS)}- and one of {', '.join(library.functions())}"
        )
    file = Path(form["file"]) if form["file"] else None
    return FailPoint(name=form["name"], n=int(form["n"] or 1), file=file, stops=bool(form["stop"]))


def arm(client: Any) -> None:
    """Let the connections of *client*, which has none yet, end the process at the chosen point.

    Raises:
        SettingsError: as `chosen`.
    """
    _replace_connections(client, _crashing)


def arm_async(client: Any) -> None:
    """Do what `arm` does, for an asyncio client."""
    _replace_connections(client, _crashing_async)


def _replace_connections(client: Any, crashing: Callable[[type, FailPoint], type]) -> None:
    if (point := chosen()) is not None:
        pool = client.connection_pool
        pool.connection_class = crashing(pool.connection_class, point)


class _Watch:
    """What one connection has asked, in the order in which the answers come."""

    def __init__(self, point: FailPoint) -> None:
        self._point = point
        self._asked: deque[str] = deque()

    def before(self, functions: Sequence[str]) -> None:
        self._point.pass_by("before", functions)

    def sent(self, functions: Sequence[str]) -> None:
        self._point.pass_by("sent", functions)
        self._asked.extend(functions)

    def answered(self, *, served: bool) -> None:
        function = self._asked.popleft() if self._asked else ""  # what is published was not asked
        if served:
            self._point.pass_by("after", [function])

    def cut(self) -> None:
        self._asked.clear()


def _crashing(connection_class: Any, point: FailPoint) -> type:
    """Return a class of connections that pass *point*."""

    class Crashing(connection_class):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._watch = _Watch(point)

        def send_packed_command(self, command: Packed, *args: Any, **options: Any) -> None:
            functions = functions_in(command)
            self._watch.before(functions)
            super().send_packed_command(command, *args, **options)
            self._watch.sent(functions)

        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                answer = super().read_response(*args, **options)
            except redis.exceptions.ResponseError:
                self._watch.answered(served=False)
                raise
            self._watch.answered(served=True)
            return answer

        def disconnect(self, *args: Any, **options: Any) -> None:
            super().disconnect(*args, **options)
            self._watch.cut()

    return Crashing


def _crashing_async(connection_class: Any, point: FailPoint) -> type:
    """Return a class of asyncio connections that pass *point*."""

    class Crashing(connection_class):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._watch = _Watch(point)

        async def send_packed_command(self, command: Packed, *args: Any, **options: Any) -> None:
            functions = functions_in(command)
            self._watch.before(functions)
            await super().send_packed_command(command, *args, **options)
            if any(functions):
                await asyncio.sleep(0)  # uvloop writes at the end of a round
            self._watch.sent(functions)

        async def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                answer = await super().read_response(*args, **options)
            except redis.exceptions.ResponseError:
                self._watch.answered(served=False)
                raise
            self._watch.answered(served=True)
            return answer

        async def disconnect(self, *args: Any, **options: Any) -> None:
            await super().disconnect(*args, **options)
            self._watch.cut()

    return Crashing


def functions_in(packed: Packed) -> list[str]:
    """Return for each command in *packed* which function it calls, "" for none."""
    data = packed if isinstance(packed, bytes) else b"".join(packed)
    functions, at = [], 0
    while at < len(data):
        count, at = _number(data, at)
        words = []
        for _ in range(count):
            size, at = _number(data, at)
            words.append(data[at : at + size])
            at += size + len(_CRLF)
        called = words[1].decode() if words[0] == b"FCALL" else ""
        functions.append(called.removeprefix(library.NAME_PREFIX))
    return functions


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of a RESP head (``*3``, ``$17``) and where what follows it begins."""
    end = data.index(_CRLF, at)
    return int(data[at + 1 : end]), end + len(_CRLF)
