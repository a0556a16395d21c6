"""A server of a benchmark's own, as `agentq up` starts it; gone afterwards with its data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from agentq.ops.embedded_broker import Broker
from agentq.store.embedded import EmbeddedServer


@contextmanager
def private_server(program: Path | None) -> Iterator[EmbeddedServer]:
    """Run *program*, None: the one that is embedded.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
    """
    # A second Ctrl-C ends `stop`, and the server while it still writes.
    with TemporaryDirectory(prefix="aqb-", ignore_cleanup_errors=True) as folder:
        server = Broker(data_dir=Path(folder), program=program)
        try:
            server.start()
            yield server
        finally:
            server.stop()
