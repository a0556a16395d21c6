"""When intake stops and begins again at a limit of the kernel's."""

from __future__ import annotations

import errno
import logging
import resource
from typing import Any

import pytest

from agentq.errors import LimitReached
from agentq.host.limits import Use
from agentq.worker import exhaustion
from agentq.worker.exhaustion import Exhaustion, named


class Intake:
    def __init__(self) -> None:
        self.fetches = True

    def suspend(self) -> None:
        self.fetches = False

    def resume(self) -> None:
        self.fetches = True


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many of 100 files are open, for the test to set."""
    used = [10]

    def uses() -> tuple[Use, ...]:
        return (Use(name="open files", used=used[0], limit=100, source="there", remedy="raise it"),)

    monkeypatch.setattr(exhaustion, "uses", uses)
    return used


def watching(hands: list[Any]) -> tuple[Exhaustion, Intake]:
    intake = Intake()
    return Exhaustion(pump=intake, hands=hands), intake  # type: ignore[arg-type]


def met(watch: Exhaustion) -> None:
    watch.met(OSError(errno.EMFILE, "Too many open files"))


def test_an_error_of_something_else_stops_nothing(use: list[int]) -> None:
    watch, intake = watching([1])
    watch.met(ValueError("no"))
    watch.round()
    assert (intake.fetches, use) == (True, [10])


def test_intake_begins_again_below_four_fifths(use: list[int]) -> None:
    watch, intake = watching([1])
    use[0] = 85
    met(watch)
    watch.round()
    assert not intake.fetches
    use[0] = 79
    watch.round()
    assert intake.fetches


def test_a_worker_that_holds_nothing_begins_again_once_there_is_any_room(use: list[int]) -> None:
    watch, intake = watching([])
    use[0] = 100
    met(watch)
    watch.round()
    assert not intake.fetches
    use[0] = 99  # what remains is not of steps: waiting for less would be for ever
    watch.round()
    assert intake.fetches


def test_four_fifths_are_said_once_until_use_has_fallen(
    use: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    watch, _ = watching([1])
    near = []
    for now in (79, 80, 90, 70, 80):
        use[0] = now
        watch.round()
        near.append(watch.near)
    told = "open files: {} of 100 (there)"
    assert near == ["", told.format(80), told.format(90), "", told.format(80)]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["open files: 80 of 100 (there): 80 % in use; raise it"] * 2


def test_this_process_is_not_at_a_limit() -> None:
    watch, intake = watching([])
    watch.round()
    assert intake.fetches
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EMFILE, "Too many open files"), r"open files: \d+ of \d+ \(RLIMIT_NOFILE\)"),
        (
            RuntimeError("can't start new thread"),
            r"for want of memory it seems .*: threads of",
        ),
        (LimitReached("said already"), "^said already$"),
    ],
)
def test_what_ends_a_worker_at_a_limit_names_the_limit(error: Exception, says: str) -> None:
    with pytest.raises(LimitReached, match=says), named():
        raise error
    with pytest.raises(ZeroDivisionError), named():
        raise ZeroDivisionError
