"""A private server for a test session: Valkey, or Redis with AGENTQ_TEST_SERVER=redis."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from agentq.host.allocator import launch_environment
from agentq.store.embedded import AppendFsync, EmbeddedServer
from agentq.store.keys import PERMANENT, Keys

_WANTED = os.environ.pop("AGENTQ_TEST_SERVER", "valkey")
"""Taken out of the environment, where agentq would refuse it as an unknown setting."""

PROGRAM = {"redis": "redis-server", "valkey": None}[_WANTED]
"""What the servers of this session run; None: what agentq embeds."""


PROGRAM = Path("redis-server") if _WANTED == "redis" else None
"""What is started; None: the embedded server's own choice, Valkey."""


class Server:
    """The running server as tests use it."""

    def __init__(self, embedded: EmbeddedServer) -> None:
        self.embedded = embedded
        self.url = embedded.url
        self.client = redis.Redis(unix_socket_path=str(embedded.socket_path))

    def restart(self) -> None:
        """Stop the server in order and start it anew on the same data."""
        self.embedded.stop()
        self.embedded.start()

    def kill(self) -> None:
        """End it by SIGKILL; `start` brings it back on the same data."""
        process = self.embedded._process  # noqa: SLF001 -- to wait for its end
        assert process is not None
        process.kill()
        process.wait()

    def start(self) -> None:
        """Start it again."""
        self.embedded.start()

    def flush(self) -> None:
        """Empty the server; the functions stay."""
        self.client.flushall()

    def keys_left(self, cell: str = "main") -> list[str]:
        """Return the keys that have no time to live and are not on the list of permanent ones."""
        prefix = Keys(cell).prefix
        return [
            key.decode()
            for key in self.client.scan_iter(match=prefix.replace("{", "[{]") + "*", count=1000)
            if self.client.ttl(key) == -1
            and not key.decode().removeprefix(prefix).startswith(PERMANENT)
        ]

    def streams(self, cell: str = "main") -> dict[str, int]:
        """Return how many messages each queue holds, handed out or not, where there are any."""
        prefix = Keys(cell).prefix
        lengths = {
            key.decode(): self.client.xlen(key)
            for kind in ("s:", "r:")
            for key in self.client.scan_iter(match=prefix.replace("{", "[{]") + kind + "*")
        }
        return {name: length for name, length in lengths.items() if length}

    def left(self, cell: str = "main") -> list[str]:
        """Return what is unfinished: what `keys_left` and `streams` look at, and delayed work.

        In one moment: work that moves while it is looked for is not missed.
        """
        prefix = Keys(cell).prefix
        found = self.client.eval(_LASTING, 0, prefix.replace("{", "[{]") + "*")
        keys = [key.decode() for key in found]  # type: ignore[union-attr]  # no coroutine
        work = tuple(prefix + kind for kind in ("s:", "r:", "delayed"))
        rest = tuple(prefix + kind for kind in PERMANENT)
        return [key for key in keys if key.startswith(work) or not key.startswith(rest)]


_LASTING = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local empty = redis.call('TYPE', key).ok == 'stream' and redis.call('XLEN', key) == 0
  if not empty and redis.call('TTL', key) == -1 then found[#found + 1] = key end
end
return found
"""
"""Keys without a time to live, empty streams left out."""


@contextmanager
def private_server(*, appendfsync: AppendFsync = "everysec") -> Iterator[Server]:
    """Run a server of this session's own."""
    # Not pytest's tmp_path: a socket's path may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="aq-test-") as folder:
        embedded = EmbeddedServer(
            data_dir=Path(folder),
            program=PROGRAM,
            appendfsync=appendfsync,
            environment=launch_environment("jemalloc"),
        )
        embedded.start()
        try:
            yield Server(embedded)
        finally:
            gc.collect()  # Celery's results unsubscribe when they are collected: not from nobody
            embedded.stop()
