"""The function library: the Lua files of `functions/`, put together, loaded and called.

Functions carry the data version in their names (`aq1_complete`), so that the libraries of two
agentq versions stand side by side in one server. One file is one function; those of `SHARED` hold
what they share and stand first, each behind what it needs.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import redis.exceptions

from agentq.errors import BrokerUnavailable

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

LIBRARY = "aq1"
"""Name of the library; its number is the version of the data in Redis."""

NAME_PREFIX = f"{LIBRARY}_"
"""What the names of its functions begin with."""

REVISION = 2
"""Counts up with each change of a function that keeps the data as it is. A worker replaces an older
revision when it starts and leaves a newer one alone: old code calls new functions, never the other
way round."""

SHARED = (
    "_prelude",
    "_runs",
    "_joins",
    "_letters",
    "_effects",
    "_deliveries",
    "_waiting",
    "_admission",
    "_run_budget",
)
"""In this order: a Lua function sees only what stands before it."""

MISSING = "Function not found"
"""What a server answers that has lost its functions (or never had them)."""


@cache
def source() -> str:
    """Return the library's source as `FUNCTION LOAD` takes it."""
    folder = files("agentq.store") / "functions"
    found = {entry.name[:-4] for entry in folder.iterdir() if entry.name.endswith(".lua")}
    names = [*SHARED, *sorted(found - {*SHARED})]
    parts = [(folder / f"{name}.lua").read_text(encoding="utf-8") for name in names]
    return f"#!lua name={LIBRARY}\n-- revision {REVISION}\n" + "\n".join(parts)


def functions() -> list[str]:
    """Return the names of the functions, without what they all begin with."""
    return sorted(re.findall(rf"register_function\W.*?'{NAME_PREFIX}(\w+)'", source()))


def ensure(client: Redis | Any) -> bool:
    """Load the library where it is missing or of an older (or edited) revision; return whether.

    Raises:
        BrokerUnavailable: as `load`.
    """
    try:
        found = client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
    except redis.exceptions.ResponseError as error:
        raise BrokerUnavailable(_explain(error)) from error
    if found and not _outdated(_code_of(found[0])):
        return False
    load(client)
    return True


def _code_of(entry: Any) -> str:
    """Return a library's source from FUNCTION LIST's answer, in either protocol version."""
    if not isinstance(entry, dict):
        entry = dict(zip(entry[::2], entry[1::2], strict=True))
    code = entry.get(b"library_code", b"")
    return code.decode() if isinstance(code, bytes) else code


def _outdated(code: str) -> bool:
    match = re.search(r"^-- revision (\d+)$", code, re.MULTILINE)
    revision = int(match[1]) if match else 0
    return revision < REVISION or (revision == REVISION and code != source())


def load(client: Redis | Any) -> None:
    """Load the library, replacing one of the same version.

    Raises:
        BrokerUnavailable: the server has no functions (Redis before 7.0) or forbids loading them.
    """
    try:
        client.execute_command("FUNCTION", "LOAD", "REPLACE", source())
    except redis.exceptions.ResponseError as error:
        raise BrokerUnavailable(_explain(error)) from error


async def aload(client: AsyncRedis | Any) -> None:
    """Do what `load` does, on an asyncio client."""
    try:
        await client.execute_command("FUNCTION", "LOAD", "REPLACE", source())
    except redis.exceptions.ResponseError as error:
        raise BrokerUnavailable(_explain(error)) from error


def _explain(error: Exception) -> str:
    if "unknown command" in str(error).lower():
        return "the broker has no functions: agentq needs Redis 7.0 or Valkey 7.2 and newer"
    return f"the broker refused the function library {LIBRARY}: {error}"
