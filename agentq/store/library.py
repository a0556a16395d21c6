"""The function library: the Lua files of `functions/`, put together, loaded and told apart.

Functions carry the data version in their names (`aq1_complete`), so that the libraries of two
agentq versions stand side by side in one server. One file is one function; those of `SHARED` hold
what they share and stand first, each behind what it needs.

Which functions a server has, it is asked by one of them, `aq1_about`, which any role may call:

    missing, or an older revision   loaded, if this user may; else `FunctionsMissing`
    this revision, other code       a working copy: loaded by workers, where they may
    this revision, or a newer one   left alone
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeGuard

import redis.exceptions

from agentq.errors import BrokerUnavailable, FunctionsMissing

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

LIBRARY = "aq1"
"""Name of the library; its number is the version of the data in Redis."""

NAME_PREFIX = f"{LIBRARY}_"
"""What the names of its functions begin with."""

REVISION = 3
"""Counts up with each change of a function that keeps the data as it is. A newer revision replaces
an older one and is left alone by it: old code calls new functions, never the other way round.
Raising it: `python -m tests.contract.wire --record`."""

SHARED = (
    "_prelude",
    "_retries",
    "_beside",
    "_leases",
    "_runs",
    "_joins",
    "_letters",
    "_effects",
    "_deliveries",
    "_waiting",
    "_admission",
    "_run_budget",
    "_ended",
)
"""In this order: a Lua function sees only what stands before it."""

MISSING = "Function not found"
"""What a server answers that has lost its functions (or never had them)."""

_ABOUT = ("FCALL", f"{LIBRARY}_about", 0)
_STANDS = f"Library '{LIBRARY}' already exists"


@dataclass(frozen=True, slots=True)
class Functions:
    """What a server has."""

    revision: int
    digest: str
    now_ms: int
    """The server's clock, when it was asked."""
    loaded: bool = False
    """Whether they were loaded just now."""

    @property
    def edited(self) -> bool:
        """Whether they are of this revision and not this code: a working copy's."""
        return self.revision == REVISION and self.digest != digest()


@cache
def _code() -> str:
    folder = files("agentq.store") / "functions"
    found = {entry.name[:-4] for entry in folder.iterdir() if entry.name.endswith(".lua")}
    parts = [*SHARED, *sorted(found - {*SHARED})]
    return "\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in parts)


def digest() -> str:
    """Return what tells this code from any other."""
    return sha256(_code().encode()).hexdigest()[:16]


@cache
def source() -> str:
    """Return the library's source as `FUNCTION LOAD` takes it."""
    # The comment is where builds before revision 3 look, which know no `about`.
    return (
        f"#!lua name={LIBRARY}\n-- revision {REVISION}\n"
        f"local REVISION, DIGEST = {REVISION}, '{digest()}'\n{_code()}"
    )


def names() -> list[str]:
    """Return the names of the library's functions."""
    return sorted(re.findall(rf"'({NAME_PREFIX}\w+)'", source()))


def functions() -> list[str]:
    """Return those names without what they all begin with."""
    return [name.removeprefix(NAME_PREFIX) for name in names()]


def is_missing(error: Exception) -> bool:
    """Whether *error* says that the server lacks the function that was called."""
    return MISSING.lower() in str(error).lower()


def find(client: Redis | Any) -> Functions | None:
    """Return what the server has, loading nothing; None: no functions, or of a build before 3.

    Raises:
        redis.exceptions.ResponseError: it may not be asked.
    """
    return _found(_answer(client, _ABOUT))


def ensure(client: Redis | Any, *, edited: bool = False, may_load: bool = True) -> Functions:
    """Load the library where it is missing or older; return what is there then.

    Args:
        client: a synchronous client.
        edited: whether to replace other code of this revision too.
        may_load: False where loading was refused before: then only what is there is asked.

    Raises:
        FunctionsMissing: they are not there, and this user may not load them.
        BrokerUnavailable: the server has no functions (Redis before 7.0), or refuses these.
        redis.exceptions.ResponseError: it is full, a replica, or forbids even to ask.
    """
    steps, answer = _ensuring(edited=edited, may_load=may_load), None
    while True:
        try:
            command = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = _answer(client, command)


async def aensure(client: AsyncRedis | Any, *, may_load: bool = True) -> Functions:
    """Do what `ensure` does, on an asyncio client."""
    steps, answer = _ensuring(edited=False, may_load=may_load), None
    while True:
        try:
            command = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            answer = await client.execute_command(*command)
        except redis.exceptions.ResponseError as error:
            answer = error


def _answer(client: Redis | Any, command: tuple[Any, ...]) -> Any:
    try:
        return client.execute_command(*command)
    except redis.exceptions.ResponseError as error:
        return error


def _ensuring(*, edited: bool, may_load: bool) -> Generator[tuple[Any, ...], Any, Functions]:
    """Yield commands, take their answers (errors too): the same for both kinds of client."""
    found = _found((yield _ABOUT))
    if _will_do(found, edited=edited and may_load):
        return found
    if not may_load:
        raise _missing(found)
    # First without REPLACE: what somebody else has loaded meanwhile may be newer.
    for replacing in ((), ("REPLACE",)):
        answer = yield ("FUNCTION", "LOAD", *replacing, source())
        forbidden = isinstance(answer, redis.exceptions.NoPermissionError)
        found = _found((yield _ABOUT))
        if _will_do(found, edited=edited and not forbidden):
            return replace(found, loaded=not isinstance(answer, Exception))
        if _STANDS not in str(answer):
            break
    raise _refused(answer, found)


def _found(answer: Any) -> Functions | None:
    """Read the answer of `about`."""
    if not isinstance(answer, Exception):
        now_ms, revision, code = answer
        return Functions(revision, code.decode(), now_ms)
    if is_missing(answer):
        return None
    if "unknown command" in str(answer).lower():
        raise BrokerUnavailable(
            "the broker has no functions: agentq needs Redis 7.0 or Valkey 7.2 and newer"
        ) from answer
    raise answer


def _will_do(found: Functions | None, *, edited: bool) -> TypeGuard[Functions]:
    return found is not None and found.revision >= REVISION and not (edited and found.edited)


def _refused(answer: Any, found: Functions | None) -> Exception:
    if isinstance(answer, redis.exceptions.NoPermissionError):
        return _missing(found)
    if isinstance(answer, redis.exceptions.OutOfMemoryError | redis.exceptions.ReadOnlyError):
        return answer
    return BrokerUnavailable(f"the broker does not take the functions {LIBRARY}: {answer}")


def _missing(found: Functions | None) -> FunctionsMissing:
    there = f"has revision {found.revision} of them" if found else "lacks them"
    return FunctionsMissing(
        f"this build needs the functions {LIBRARY}, revision {REVISION}; the broker {there}, and "
        "this user may not load them: run `agentq broker init` as one who may"
    )
