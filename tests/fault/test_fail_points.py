"""A process that dies at any function call: others go on, every run ends once, nothing is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from agentq.store import fail_points, library
from tests.fault.scenarios.function_points import SCENARIOS, Stages
from tests.support.redis_server import private_server

pytestmark = pytest.mark.timeout(180)

POINTS = [name for name in fail_points.names() if not name.startswith("sent-")]
"""What `sent-` leaves behind is what one of the others does; `make fault` plays it too."""

AT_ONCE = 3
"""Plays: they mostly wait, for processes to start and for leases to end."""


@pytest.fixture(scope="module")
def acts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[None]]]:
    """The acts of the points that are tested, under way."""
    tested = [
        item.callspec.params["point"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "acts" in item.fixturenames
    ]
    several = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="act")
    with ExitStack() as stack:
        servers = [stack.enter_context(private_server()) for _ in range(AT_ONCE)]
        stages = stack.enter_context(Stages(servers, tmp_path_factory.mktemp("acts")))
        yield {point: several.submit(stages.act, point) for point in tested}
        several.shutdown(cancel_futures=True)


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_at_a_point_loses_and_doubles_nothing(
    acts: Mapping[str, Future[None]], point: str
) -> None:
    acts[point].result()


def test_every_function_has_a_scenario() -> None:
    assert set(SCENARIOS) == set(library.functions())
