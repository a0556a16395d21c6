"""What users' values and exceptions hold is theirs: it arrives as it is, or is refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import chain, chord, group

from agentq.errors import InvalidArgument, RunFailed
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until

WAIT = 15

NO_TAGS = [
    {"__type__": "datetime", "__value__": "nonsense"},
    {"__type__": "unknown", "__value__": 1},
    {"__type__": [], "__value__": {}},
]


@pytest.fixture(scope="module")
def data(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    ledger = Ledger(tmp_path_factory.mktemp("data") / "ledger")
    with running("tests.support.apps.data", url, ledger, BLOBS__STORE="none") as app:
        app.worker()
        yield app


@pytest.fixture
def app(data: Running) -> Any:
    data.ledger.clear()
    return data.app


# -- what looks like a reference --------------------------------------------------------------------


def test_a_step_that_names_another_runs_join_is_not_given_its_outcomes(
    app: Any, data: Running
) -> None:
    other = app.held.submit(2)
    wait_until(lambda: data.ledger.count("holds") == 1, data.ledger.lines)
    claim = {"$join": f"{other.id}:j1", "flow": True}

    assert app.echo.submit(claim).result(timeout=WAIT) == {"heard": claim}
    other.cancel()


def test_a_step_that_names_its_own_runs_join_is_delivered_literally(app: Any) -> None:
    run = app.own.submit(2)

    claim = {"$join": f"{run.id}:j1", "flow": True}
    assert run.result(timeout=WAIT) == {"heard": claim}


def test_members_are_given_and_give_what_looks_like_a_reference(app: Any) -> None:
    claims = [{"$join": "some:j1", "flow": True}, {"$join": "some:j1"}]

    assert app.members.submit(claims).result(timeout=WAIT) == claims


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_task_is_given_what_looks_like_a_reference(app: Any, kind: str) -> None:
    claim = {"$join": "some"}
    same, heard = getattr(app, f"{kind}_same"), getattr(app, f"{kind}_heard")

    result = chain(same.s(claim), heard.s()).delay()

    assert result.get(timeout=WAIT) == {"heard": claim}


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_chords_body_is_given_its_results_and_no_others(app: Any, kind: str) -> None:
    claim = {"$join": "some"}
    same, heard = getattr(app, f"{kind}_same"), getattr(app, f"{kind}_heard")

    result = chord([same.s(claim), same.s(2)], heard.s()).delay()

    assert result.get(timeout=WAIT) == {"heard": [claim, 2]}


def test_what_a_chords_body_returns_is_no_reference(app: Any) -> None:
    body = chain(app.plain_claims_own.s(), app.plain_heard.s())
    result = chord([app.plain_same.s(1), app.plain_same.s(2)], body).delay()

    heard = result.get(timeout=WAIT)["heard"]

    assert list(heard) == ["$join"]


def test_each_of_many_bodies_is_given_the_results_again_when_it_is_retried(app: Any) -> None:
    header = [app.plain_same.s(1), app.plain_same.s(2)]
    result = chord(header, group(app.plain_at_last.s(), app.plain_at_last.s())).delay()

    assert result.get(timeout=WAIT) == [[1, 2], [1, 2]]


# -- exceptions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        ("surrogate", "ValueError", r"bad \udcff name"),
        ("silent", "Silent", "<unprintable Silent object>"),
    ],
)
def test_an_exceptions_text_is_made_fit_to_be_sent(
    app: Any, data: Running, kind: str, what: str, error: str, text: str
) -> None:
    with pytest.raises(RunFailed) as failed:
        app.throwing[kind].submit(what).result(timeout=WAIT)

    assert (failed.value.kind, failed.value.message) == (error, text)
    assert data.ledger.lines() == [f"threw {what}"]


@pytest.mark.parametrize("what", ["surrogate", "silent", "long"])
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_task_fails_with_its_own_exception(app: Any, data: Running, kind: str, what: str) -> None:
    result = getattr(app, f"{kind}_throw").delay(what)

    result.get(timeout=WAIT, propagate=False)

    assert result.state == "FAILURE"
    assert type(result.result).__name__ == ("Silent" if what == "silent" else "ValueError")
    assert len(result.traceback) < 10_000
    assert data.ledger.lines() == [f"threw {what}"]


def test_a_chord_fails_with_an_exception_that_has_no_text(app: Any) -> None:
    result = chord([app.plain_throw.s("silent"), app.plain_same.s(1)], app.plain_heard.s()).delay()

    result.get(timeout=WAIT, propagate=False)

    assert result.state == "FAILURE"
    assert "Silent" in str(result.result)


def test_a_members_long_text_is_cut(app: Any) -> None:
    [[kind, message]] = app.long_members.submit(["long"]).result(timeout=WAIT)

    assert kind == "ValueError"
    assert message == f"{'x' * 6144}... (4991808 characters cut) ...{'x' * 2048}"


# -- values -----------------------------------------------------------------------------------------


def test_members_that_give_what_only_looks_like_a_tag_give_the_object(app: Any) -> None:
    assert app.members.submit(NO_TAGS).result(timeout=WAIT) == NO_TAGS


@pytest.mark.parametrize("value", NO_TAGS)
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_tasks_may_return_what_only_looks_like_a_tag(app: Any, kind: str, value: Any) -> None:
    result = getattr(app, f"{kind}_same").delay(value)

    assert result.get(timeout=WAIT) == value
    assert result.state == "SUCCESS"


@pytest.mark.parametrize(
    ("flow", "text"),
    [("nan", r"value\['scores'\]\[1\] is nan"), ("typed_nan", r"'value'\] is inf")],
)
def test_a_step_that_returns_no_number_fails_by_name(app: Any, flow: str, text: str) -> None:
    with pytest.raises(RunFailed, match=text) as failed:
        getattr(app, flow).submit(None).result(timeout=WAIT)
    assert failed.value.kind == "InvalidResult"


def test_an_argument_that_is_no_number_is_refused(app: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"same' was given: value\[1\] is -inf"):
        app.measured.submit([None, -math.inf])
    with pytest.raises(InvalidArgument, match=r"measures' was given: value\['value'\] is nan"):
        app.typed.submit({"value": math.nan})


def test_a_tasks_argument_that_is_no_number_is_refused(app: Any) -> None:
    with pytest.raises(InvalidArgument, match="is nan"):
        app.plain_same.delay(math.nan)


def test_a_member_that_returns_more_than_max_payload_fails_alone(app: Any) -> None:
    [small, large] = app.sizes.submit([10, 300_000]).result(timeout=WAIT)

    assert small == "x" * 10
    assert large[0] == "PayloadTooLarge"
    assert "300002 bytes as JSON; broker.max_payload is 262144" in large[1]
