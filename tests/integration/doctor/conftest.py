"""A server of these tests' own, to be spoiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.cell import Cell
from tests.support.redis_server import Server, private_server


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server of these tests, as production would have it."""
    with private_server(appendfsync="always") as found:
        found.client.config_set("maxmemory", "256mb")
        found.client.config_set("latency-monitor-threshold", "100")
        yield found


@pytest.fixture
def cell(own: Server) -> Cell:
    own.flush()
    found = Cell(own.url)
    found.store.ensure_functions()
    own.client.slowlog_reset()
    own.client.latency_reset()
    return found


@pytest.fixture
def changed(own: Server) -> Iterator[Callable[[str, str], None]]:
    """Set what the server is configured to, until the end of the test."""
    before: dict[str, str] = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, own.client.config_get(name)[name])
        own.client.config_set(name, value)

    yield change
    for name, value in before.items():
        own.client.config_set(name, value)
