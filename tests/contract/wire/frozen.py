"""A world in which nothing depends on when or where: the server's clock and every new id are fixed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from celery import _state
from kombu.utils.uuid import uuid as celery_id

from agentq.blobs import payloads
from agentq.broker import build, lease_keeper, message, publisher
from agentq.flows import blob_cell, compiler, flow
from agentq.store import library
from agentq.worker import loop, tracer
from agentq.worker.requests import separate_stacks

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
CELL_ID = UUID(int=1)
"""What tells the cell's blobs from all others': one for all scenes, which become one cell again."""

_SHIM = f"""local function still(name)
  return function(command, ...)
    if command == 'TIME' then return {{ '{NOW_MS // 1000}', '0' }} end
    if command == 'INFO' then return 'used_memory:1000000\\r\\nmaxmemory:0\\r\\n' end
    if command == 'MEMORY' then return redis[name](command, ...) and 1000 end
    local args = {{ ... }}
    if command == 'XADD' then
      for i, arg in ipairs(args) do if arg == '*' then args[i] = '{NOW_MS}-*' end end
    end
    return redis[name](command, unpack(args)) -- the server's: the one below is not declared yet
  end
end
local redis = {{ call = still('call'), pcall = still('pcall'),
  register_function = redis.register_function,
  error_reply = function(text) return {{ err = text }} end }}
"""
"""Stands before the functions and between them and the server."""


def still(source: str) -> str:
    """Return a library whose clock stands and whose entries have ids of that time."""
    head, rest = source.split("\n", 1)
    return f"{head}\n{_SHIM}{rest}"


@contextmanager
def fixed(app: Any, first_id: int) -> Iterator[None]:
    """Fix what today's code asks of clocks, of chance and of this machine."""
    stack = _state._task_stack  # noqa: SLF001 -- a worker's first act, undone afterwards
    ids = count(first_id)

    def new_id() -> UUID:
        return UUID(int=next(ids))

    with pytest.MonkeyPatch.context() as patch:
        for module in (flow, lease_keeper, message, publisher):
            patch.setattr(module, "uuid4", new_id)
        patch.setattr(celery_id, "__defaults__", (new_id,))
        patch.setattr(blob_cell, "uuid4", lambda: CELL_ID)
        patch.setattr(payloads, "time", SimpleNamespace(time=NOW.timestamp))
        patch.setattr(compiler, "token_hex", lambda _: "feed")
        patch.setattr("celery.app.amqp.anon_nodename", lambda: "gen1@host")
        patch.setattr("celery.app.base.Celery.now", lambda _: NOW)
        patch.setattr("celery.app.base.Celery.thread_oid", "reply-to")
        patch.setattr(tracer, "_now", lambda: NOW.isoformat().encode())
        patch.setattr(tracer, "_core", lambda: "0")
        patch.setattr(tracer, "time", SimpleNamespace(monotonic=lambda: 0.0))
        patch.setattr(lease_keeper, "socket", SimpleNamespace(gethostname=lambda: "host"))
        machine = SimpleNamespace(
            getpid=lambda: 1,
            sched_getaffinity=lambda _: {0},
            uname=lambda: SimpleNamespace(nodename="host"),
        )
        for module in (build, lease_keeper, loop):
            patch.setattr(module, "os", machine)
        patch.setattr(build, "build", lambda: "1.0.0 (functions 1, 0123456789abcdef)")
        patch.setattr(stack, "__ident_func__", stack.__ident_func__)
        separate_stacks(app)
        yield


def freeze(client: Any) -> None:
    """Load today's functions with a clock that stands."""
    client.function_load(still(library.source()), replace=True)
