"""A process that dies at any function call: others go on, every run ends once, nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from agentq.store import library
from tests.fault.scenarios import crash_points, function_points, migrations
from tests.support.play import Plays, Scenario

pytestmark = pytest.mark.timeout(180)

Act = Callable[[Plays], Any]

MOMENTS = ("before", "after")
"""What `sent` leaves behind is what one of these does; `make fault` plays it too."""


def acts_of(scenarios: Mapping[str, Scenario]) -> dict[str, Act]:
    """Return what to play, by its point."""
    return {
        f"{moment}-{name}": partial(Plays.act, scenario=scenario, point=f"{moment}-{name}")
        for name, scenario in scenarios.items()
        for moment in MOMENTS
    }


POINTS = acts_of(function_points.SCENARIOS)
MOVES = acts_of({name: migrations.SCENARIOS[name] for name in ("enqueue", "complete")})

CHORDS = {
    f"{crash.who}, {moment}-{crash.function}": partial(
        crash_points.chords, crash=crash, moment=moment, trials=1
    )
    for crash in crash_points.CRASHES
    for moment in MOMENTS
}


@pytest.fixture(scope="module")
def acts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Act, Future[Any]]]:
    """What is tested, under way, several at a time."""
    tested = [
        item.callspec.params["act"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "acts" in item.fixturenames
    ]
    with crash_points.several_plays(tmp_path_factory.mktemp("acts")) as start:
        yield {act: start(act) for act in tested}


@pytest.mark.parametrize("act", POINTS.values(), ids=POINTS)
def test_a_process_that_dies_at_a_point_loses_and_doubles_nothing(
    acts: Mapping[Act, Future[None]], act: Act
) -> None:
    acts[act].result()


@pytest.mark.parametrize("act", CHORDS.values(), ids=CHORDS)
def test_a_chords_body_runs_once_though_a_process_dies_as_its_header_ends(
    acts: Mapping[Act, Future[crash_points.Row]], act: Act
) -> None:
    row = acts[act].result()
    assert row.holds, row


@pytest.mark.parametrize("act", MOVES.values(), ids=MOVES)
def test_a_move_from_or_to_a_stock_celery_that_dies_is_made_again_and_moves_each_once(
    acts: Mapping[Act, Future[None]], act: Act
) -> None:
    acts[act].result()


def test_every_function_has_a_scenario() -> None:
    assert set(function_points.SCENARIOS) == set(library.functions())
