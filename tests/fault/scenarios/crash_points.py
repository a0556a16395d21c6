"""Chords, and a crash at each fail-point around the completion of the last task of their header.

Plain Celery loses the body there when a prefork child dies: its result is stored and the body not
yet sent, and the main process acks the message. Here all of that is one call.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentq.store import fail_points
from tests.fault.scenarios import function_points, migrations
from tests.fault.scenarios.row import Row
from tests.support.play import WAIT_S, Play, Plays, Scenario
from tests.support.redis_server import private_server
from tests.support.waiting import wait_until

WIDTH = 3
_AT_ONCE = 3
"""Plays: they mostly wait, for processes to start and for leases to end."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Who dies, and at which call: that which ends the last task of the header."""

    who: str
    options: tuple[str, ...]
    """Of the worker."""
    goes_on: bool
    """Whether the worker does, of which only a child dies."""
    function: str
    call: int
    """The how many-th of the process."""


_PREFORK = ("-P", "prefork", "-c", "1")

CRASHES = (
    Crash("our worker", ("-c", "1"), goes_on=False, function="complete", call=WIDTH),
    Crash("our worker", (), goes_on=False, function="complete_many", call=1),
    Crash("a prefork child", _PREFORK, goes_on=True, function="complete", call=WIDTH),
    Crash("a prefork worker", _PREFORK, goes_on=False, function="complete", call=WIDTH),
)


def chords(plays: Plays, crash: Crash, moment: str, trials: int) -> Row:
    """Let *trials* chords pass a crash at one point; count how often each body ran."""
    lost = doubled = 0
    slowest = 0.0
    for _ in range(trials):
        name = uuid4().hex
        with plays.one() as play:
            play.producer(f"send_chord(aq, {WIDTH}, {name!r})")
            took, bodies = _after(play, crash, f"{moment}-{crash.function}")
        lost += f"{name} {sum(range(WIDTH + 1))}" not in bodies
        doubled += max(0, sum(bodies.values()) - 1)
        slowest = max(slowest, took)
    what = f"chord, {crash.who} dies {moment}-{crash.function} of its last task"
    return Row(10, what, trials, lost, doubled, slowest)


def _after(play: Play, crash: Crash, point: str) -> tuple[float, dict[str, int]]:
    """Let a process die at *point* and others go on; return for how long they did, and the bodies."""
    mark = play.folder / uuid4().hex
    worker = play.dying(f"{point}:{crash.call}@{mark}", *crash.options)
    wait_until(mark.exists, lambda: f"it dies\n{worker.log()}", WAIT_S)
    died = time.monotonic()
    if not crash.goes_on:
        worker.close()  # a pool's main process goes with its child
        play.go_on()
    bodies = play.ran("total")
    took = time.monotonic() - died
    worker.close()
    return took, bodies


@contextmanager
def several_plays(
    folder: Path, *, dying: Sequence[str] = ()
) -> Iterator[Callable[..., Future[Any]]]:
    """Give what starts an act, a function of the plays and of what else it is given.

    *dying*: options of the workers that die.
    """
    with ExitStack() as stack:
        servers = [stack.enter_context(private_server()) for _ in range(_AT_ONCE)]
        plays = stack.enter_context(Plays(servers=servers, folder=folder, dying=dying))
        several = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="act")
        yield lambda act, *given: several.submit(act, plays, *given)
        several.shutdown(cancel_futures=True)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aq-crash-") as name:
        yield Path(name)


def run(trials: int) -> list[Row]:
    """Let *trials* chords pass a crash at each point around a completion."""
    with _folder() as folder, several_plays(folder) as start:
        rows = [
            start(chords, crash, moment, trials)
            for crash in CRASHES
            for moment in fail_points.MOMENTS
        ]
        return [row.result() for row in rows]


def run_functions() -> list[Row]:
    """Let a process die at each point of each function."""
    functions, moves = function_points.SCENARIOS, migrations.SCENARIOS
    stock = {name: functions[name] for name in function_points.OF_ANY_WORKER}
    return [
        _every_point("a process", functions),
        _every_point("a worker with a solo pool", stock, dying=("-P", "solo")),
        _every_point("agentq migrate", moves),
    ]


def _every_point(who: str, scenarios: Mapping[str, Scenario], *, dying: Sequence[str] = ()) -> Row:
    with _folder() as folder, several_plays(folder, dying=dying) as start:
        acts = [
            start(Plays.act, scenario, f"{moment}-{name}")
            for name, scenario in scenarios.items()
            for moment in fail_points.MOMENTS
        ]
        for act in acts:
            act.result()
    return Row(33, f"{who} dies at each fail-point of its functions", len(acts), 0, 0)
