"""Any order of calls by producers, workers, reapers and people: each id in one place, ended once.

`make test` tries what Hypothesis' default profile says, `make fault` the profile `fault`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.model.people import People
from tests.support.model.producers import Producers
from tests.support.model.workers import Workers
from tests.support.redis_server import Server, private_server


class Queue(Producers, Workers, People):
    """What the functions promise, beside a model that a child could keep on paper."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of its own: what is left in it is ours."""
    with private_server() as found:
        yield found


@pytest.mark.timeout(900)
def test_any_order_of_calls_keeps_each_id_in_one_place(server: Server) -> None:
    Queue.url, Queue.server = server.url, server
    run_state_machine_as_test(
        Queue,
        settings=settings(
            deadline=timedelta(seconds=2),
            phases=[Phase.generate],  # shrinking takes minutes; the steps that failed are printed
            suppress_health_check=list(HealthCheck),
        ),
    )
