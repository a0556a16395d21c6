"""Celery's canvas and task promises on our transport, the same tests for each kind of worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError

from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.stage import OPTIONS, Stage, on_stage
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.timeout(30)]

WAIT = 20


@pytest.fixture(scope="module", params=sorted(OPTIONS))
def stage(
    request: pytest.FixtureRequest, session_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """A worker of each kind, for all tests of the module."""
    ledger = Ledger(tmp_path_factory.mktemp("canvas") / "ledger")
    with on_stage(session_server, ledger, worker=request.param) as found:
        yield found


@pytest.fixture
def canvas(stage: Stage) -> Any:
    return stage.app


@pytest.fixture
def ledger(stage: Stage) -> Ledger:
    stage.ledger.clear()
    return stage.ledger


@pytest.fixture
def clean(stage: Stage) -> Iterator[None]:
    yield
    stage.check_clean()


def numbers(canvas: Any, count: int) -> list[Any]:
    return [canvas.number.s(value) for value in range(count)]


# -- one task ---------------------------------------------------------------------------------------


def test_delay_returns_what_the_task_returned(canvas: Any) -> None:
    assert canvas.add.delay(1, 2).get(timeout=WAIT) == 3


def test_coroutine_task_returns_what_it_returned(canvas: Any) -> None:
    assert canvas.coroutine.delay(1).get(timeout=WAIT) == 2


def test_failure_raises_the_tasks_own_exception(canvas: Any) -> None:
    with pytest.raises(ValueError, match=r"^broken$"):
        canvas.fail.delay("broken").get(timeout=WAIT)


def test_date_comes_back_as_a_date(canvas: Any) -> None:
    assert canvas.moment.delay().get(timeout=WAIT) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_date_goes_in_as_a_date(canvas: Any) -> None:
    moment = datetime(2026, 5, 6, tzinfo=UTC)
    assert canvas.same.delay(moment).get(timeout=WAIT) == moment


def test_pydantic_argument_and_result_are_converted(canvas: Any) -> None:
    assert canvas.mirrored.delay(canvas.Point(x=1, y=2)).get(timeout=WAIT) == {"x": 2, "y": 1}


def test_task_that_acks_early_stores_its_result(canvas: Any) -> None:
    assert canvas.early.delay(7).get(timeout=WAIT) == 7


def test_link_is_called_with_the_result(canvas: Any, ledger: Ledger) -> None:
    canvas.add.apply_async((1, 2), link=canvas.noted.s()).get(timeout=WAIT)
    wait_until(lambda: ledger.count("noted 3") == 1, ledger.lines)


def test_link_error_is_called_once_with_the_tasks_id(canvas: Any, ledger: Ledger) -> None:
    result = canvas.fail.apply_async(link_error=canvas.failed.s())
    result.get(timeout=WAIT, propagate=False)
    wait_until(lambda: ledger.count(f"failed {result.id}") == 1, ledger.lines)


def test_new_style_errback_is_given_request_and_exception(canvas: Any, ledger: Ledger) -> None:
    result = canvas.fail.apply_async(link_error=canvas.failed_with.s())
    result.get(timeout=WAIT, propagate=False)
    assert ledger.count(f"failed_with {result.id} ValueError") == 1


# -- retries, reject, ignore ------------------------------------------------------------------------


def test_retry_runs_the_task_again_with_its_number(canvas: Any, ledger: Ledger) -> None:
    assert canvas.twice_then.delay(9).get(timeout=WAIT) == 9
    assert ledger.lines() == ["attempt 0", "attempt 1", "attempt 2"]


def test_retry_of_a_task_without_result_is_not_lost(canvas: Any, ledger: Ledger) -> None:
    canvas.forgetful.delay()
    wait_until(lambda: ledger.lines() == ["forgetful 0", "forgetful 1"], ledger.lines)


def test_autoretry_ends_with_the_tasks_exception(canvas: Any, ledger: Ledger) -> None:
    with pytest.raises(ValueError, match=r"^never$"):
        canvas.never_right.delay().get(timeout=WAIT)
    assert ledger.lines() == ["never_right"] * 3


def test_reject_with_requeue_hands_the_message_out_again(canvas: Any, ledger: Ledger) -> None:
    assert canvas.rejected.delay(requeue=True).get(timeout=WAIT) == "second time"
    assert ledger.lines() == ["rejected False", "rejected True"]


def test_reject_without_requeue_keeps_a_dead_letter(
    canvas: Any, stage: Stage, ledger: Ledger
) -> None:
    result = canvas.rejected.delay(requeue=False)
    letter = wait_until(lambda: stage.dead_letter(result.id), "dead letter")
    assert letter[b"b"].startswith(b'[[],{"requeue":false}')
    assert ledger.lines() == ["rejected False"]


def test_ignored_task_leaves_no_result(canvas: Any, ledger: Ledger) -> None:
    result = canvas.ignored.delay()
    wait_until(lambda: ledger.count("ignored") == 1, ledger.lines)
    assert result.state == "PENDING"


# -- time -------------------------------------------------------------------------------------------


def test_countdown_holds_the_task_back(canvas: Any) -> None:
    began = time.time()
    ran = canvas.at.apply_async(countdown=1).get(timeout=WAIT)
    assert 1.0 <= ran - began < 3.5


def test_eta_holds_the_task_back(canvas: Any) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1)
    ran = canvas.at.apply_async(eta=due).get(timeout=WAIT)
    assert due.timestamp() <= ran < due.timestamp() + 2.5


def test_expired_task_is_revoked_unrun(canvas: Any, ledger: Ledger) -> None:
    with pytest.raises(TaskRevokedError):
        canvas.add.apply_async((1, 2), expires=-1).get(timeout=WAIT)
    assert ledger.lines() == []


def test_chain_whose_step_expired_ends(canvas: Any, ledger: Ledger) -> None:
    flow = chain(canvas.add.si(1, 2).set(expires=-1), canvas.add.s(3))
    with pytest.raises(TaskRevokedError):
        flow.apply_async().get(timeout=WAIT)
    assert ledger.lines() == []


def test_chord_whose_headers_chain_expired_ends(canvas: Any, ledger: Ledger) -> None:
    broken = chain(canvas.add.si(1, 2).set(expires=-1), canvas.add.s(3))
    result = chord([broken, canvas.number.s(1)], canvas.total.s()).apply_async()
    with pytest.raises(ChordError):
        _own_result(result)
    assert ledger.count("total 2") == 0


def _own_result(result: Any) -> Any:
    """Return the result of a chord's body, whatever its header's tasks ended with."""
    result.parent = None
    return result.get(timeout=WAIT)


def test_revoked_task_does_not_run(canvas: Any, ledger: Ledger) -> None:
    result = canvas.add.apply_async((1, 2), countdown=1)
    result.revoke()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=WAIT)
    assert ledger.lines() == []


# -- chains, groups, chords -------------------------------------------------------------------------


def test_chain_hands_each_result_on(canvas: Any) -> None:
    assert chain(canvas.add.s(1, 2), canvas.add.s(3), canvas.add.s(4)).apply_async().get(WAIT) == 10


def test_chain_stops_at_a_failure(canvas: Any, ledger: Ledger) -> None:
    flow = chain(canvas.fail.si("first"), canvas.add.s(1))
    with pytest.raises(ValueError, match="first"):
        flow.apply_async().get(timeout=WAIT)
    assert ledger.lines() == ["fail first"]


def test_group_returns_results_in_order(canvas: Any) -> None:
    assert group(numbers(canvas, 20)).apply_async().get(timeout=WAIT) == list(range(20))


@pytest.mark.parametrize("width", [0, 1, 2, 100, 1000])
def test_chord_body_runs_once_with_all_results(canvas: Any, ledger: Ledger, width: int) -> None:
    result = chord(numbers(canvas, width), canvas.total.s()).apply_async()
    assert result.get(timeout=25) == sum(range(width))
    assert ledger.lines() == [f"total {width}"]


def test_chord_body_is_given_results_in_order(canvas: Any) -> None:
    flow = chord(numbers(canvas, 50), canvas.same.s())
    assert flow.apply_async().get(timeout=WAIT) == list(range(50))


Build = Callable[[Any], Any]

SHAPES: dict[str, tuple[Build, Any]] = {
    "group in header": (
        lambda c: chord([c.number.s(1), group(c.number.s(2), c.number.s(3))], c.total.s()),
        6,
    ),
    "chain in header": (
        lambda c: chord([chain(c.number.s(1), c.add.s(1)), c.number.s(5)], c.same.s()),
        [2, 5],
    ),
    "chain that ends in a group in header": (
        lambda c: chord(
            [c.number.s(1), chain(c.number.s(4), group(c.add.s(1), c.add.s(2)))], c.same.s()
        ),
        [1, [5, 6]],
    ),
    "chord in header": (
        lambda c: chord([chord(numbers(c, 3), c.total.s()), c.number.s(5)], c.same.s()),
        [3, 5],
    ),
    "chord of chords": (
        lambda c: chord([chord(numbers(c, n), c.total.s()) for n in (2, 3, 4)], c.same.s()),
        [1, 3, 6],
    ),
    "chord as body": (
        lambda c: chord(numbers(c, 3), chord([c.total.s(), c.total.s()], c.same.s())),
        [3, 3],
    ),
    "chain as body": (
        lambda c: chord(numbers(c, 3), chain(c.total.s(), c.add.s(10))),
        13,
    ),
    "immutable body": (
        lambda c: chord(numbers(c, 3), c.number.si(42)),
        42,
    ),
    "chord inside chain inside chord": (
        lambda c: chord(
            [chain(c.number.s(1), chord([c.add.s(1), c.add.s(2)], c.total.s()), c.add.s(100))],
            c.same.s(),
        ),
        [105],
    ),
    "group becomes chord in chain": (
        lambda c: chain(c.number.s(1), group(c.add.s(1), c.add.s(2)), c.total.s()),
        5,
    ),
    "two chords in chain": (
        lambda c: chain(
            group(c.number.s(1), c.number.s(2)), c.total.s(), group(c.add.s(1), c.add.s(2)),
            c.total.s(),
        ),
        9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_nested_canvas_gives_its_value(canvas: Any, shape: str) -> None:
    build, expected = SHAPES[shape]
    assert build(canvas).apply_async().get(timeout=WAIT) == expected


def test_group_as_body_gives_each_member_the_results(canvas: Any) -> None:
    flow = chord(numbers(canvas, 3), group(canvas.total.s(), canvas.same.s()))
    assert flow.apply_async().get(timeout=WAIT) == [3, [0, 1, 2]]


def test_chord_with_a_wide_group_as_body_runs_every_member(canvas: Any) -> None:
    flow = chord(numbers(canvas, 2), group(canvas.number.si(i) for i in range(600)))
    assert flow.apply_async().get(timeout=WAIT) == list(range(600))


@pytest.mark.parametrize("immutable", [False, True])
def test_failed_header_fails_the_body_and_calls_its_errback_once(
    canvas: Any, ledger: Ledger, *, immutable: bool
) -> None:
    body = canvas.number.si(1) if immutable else canvas.total.s()
    result = chord([canvas.number.s(1), canvas.fail.s(), canvas.fail.s()], body.on_error(
        canvas.failed.s())).apply_async()  # fmt: skip
    with pytest.raises(ChordError, match=r"raised ValueError\('wrong'\)"):
        _own_result(result)
    wait_until(lambda: ledger.count(f"failed {result.id}") == 1, ledger.lines)
    assert ledger.count("total 3") == 0
    assert result.state == "FAILURE"


def test_replaced_task_ends_with_its_replacements_result(canvas: Any, ledger: Ledger) -> None:
    assert canvas.replaced.delay(5).get(timeout=WAIT) == 6
    assert ledger.count("replaced") == 1


def test_task_replaced_by_a_chord_in_a_chord_ends_both(canvas: Any) -> None:
    flow = chord([canvas.fanned.s(4), canvas.number.s(1)], canvas.same.s())
    assert flow.apply_async().get(timeout=WAIT) == [6, 1]


def test_group_published_by_a_task_runs(canvas: Any) -> None:
    _, members = canvas.spawn.delay(5).get(timeout=WAIT)
    results = [canvas.app.AsyncResult(member).get(timeout=WAIT) for member in members]
    assert results == [0, 1, 2, 3, 4]


# -- remote control, plain kombu, bad input ---------------------------------------------------------


def test_remote_control_is_answered(canvas: Any) -> None:
    (answer,) = canvas.app.control.inspect(timeout=2).active_queues().values()
    assert sorted(queue["name"] for queue in answer) == ["critical", "shared"]


def test_two_threads_that_wait_get_their_own_results(canvas: Any) -> None:
    found: dict[int, int] = {}

    def ask(value: int) -> None:
        found[value] = canvas.number.delay(value).get(timeout=WAIT)

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert found == {value: value for value in range(8)}


def test_an_errback_that_is_the_same_task_as_the_failing_body_runs(
    canvas: Any, ledger: Ledger
) -> None:
    body = canvas.said.si("body").on_error(canvas.said.si("errback"))

    result = chord([canvas.fail.si(), canvas.number.si(1)], body).delay()

    with pytest.raises(ValueError, match="wrong"):
        result.get(timeout=WAIT)
    wait_until(lambda: ledger.count("said errback 1") == 1, "the errback has run")
    assert ledger.count("said body 1") == 0


def test_a_coroutine_task_can_call_itself(canvas: Any) -> None:
    assert canvas.countdown.delay(3).get(timeout=WAIT) == 3
