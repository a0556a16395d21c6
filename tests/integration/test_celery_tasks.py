"""Ordinary tasks on our loop: what Celery promises of a task holds for one that is a coroutine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import chain, chord, group
from celery.exceptions import (
    ChordError,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
)

from agentq.errors import StepAborted
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until

WAIT = 8


@pytest.fixture(scope="module")
def tasks(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    ledger = Ledger(tmp_path_factory.mktemp("tasks") / "ledger")
    with running("tests.support.apps.coroutines", url, ledger) as app:
        app.worker()
        yield app


@pytest.fixture
def app(tasks: Running) -> Any:
    return tasks.app


def noted(tasks: Running, task_id: str, last: str) -> list[str]:
    """Return what was noted of a task, once *last* was; the id left out."""

    def lines() -> list[str]:
        found = [line for line in tasks.ledger.lines() if task_id in line.split()]
        return [" ".join(word for word in line.split() if word != task_id) for line in found]

    wait_until(lambda: any(line.startswith(last) for line in lines()), f"{last} of {task_id}")
    return lines()


def alone(app: Any, result: Any) -> Any:
    """Return a result that knows no parents: with them, `get` raises the first one's error."""
    return app.app.AsyncResult(result.id)


# -- one request for each coroutine -------------------------------------------------------------------


def test_interleaved_tasks_keep_their_own_request_retry_and_children(tasks: Running) -> None:
    results = [tasks.app.interleaved.delay(f"task{i}") for i in range(3)]
    for i, result in enumerate(results):
        name, own, retries, args, child = result.get(timeout=WAIT)
        assert (name, own, retries, args) == (f"task{i}", result.id, 1, [f"task{i}"])
        assert child != own
    assert tasks.ledger.lines("mixed up") == []
    children = wait_until(
        lambda: lines if len(lines := tasks.ledger.lines("child ")) == 6 else None, "6 children"
    )
    expected = [f"child task{i} {result.id} {result.id}" for i, result in enumerate(results)]
    assert sorted(children) == sorted(expected * 2)


def test_autoretry_works_for_coroutines(tasks: Running) -> None:
    assert tasks.app.auto.delay(2).get(timeout=WAIT) == "through"
    assert len(tasks.ledger.lines("auto 2")) == 3
    with pytest.raises(ConnectionError, match="not yet"):
        tasks.app.auto.delay(9).get(timeout=WAIT)
    assert len(tasks.ledger.lines("auto 9")) == 3


def test_coroutines_and_functions_mix_in_one_canvas(app: Any) -> None:
    assert chain(app.add.s(1, 2), app.sync_add.s(3), app.add.s(4))().get(timeout=WAIT) == 10
    members = group(app.add.s(i, i) if i % 2 else app.sync_add.s(i, i) for i in range(6))
    assert members().get(timeout=WAIT) == [0, 2, 4, 6, 8, 10]
    assert chord(members)(app.collects.s()).get(timeout=WAIT) == 30


def test_a_step_can_be_sent_as_an_ordinary_task(app: Any) -> None:
    assert app.as_step.delay(4).get(timeout=WAIT) == 8
    assert chain(app.add.s(1, 1), app.as_step.s())().get(timeout=WAIT) == 4


# -- hooks and signals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hooked", "sync_hooked"])
def test_hooks_and_signals_of_a_success(tasks: Running, name: str) -> None:
    result = getattr(tasks.app, name).delay("fine")
    assert result.get(timeout=WAIT) == "fine"
    assert sorted(noted(tasks, result.id, "postrun")) == [
        "after_return SUCCESS",
        "before_start",
        "on_success fine",
        "postrun SUCCESS",
        f"prerun {name}",
        "success fine",
    ]


@pytest.mark.parametrize("name", ["hooked", "sync_hooked"])
def test_hooks_and_signals_of_a_failure(tasks: Running, name: str) -> None:
    result = getattr(tasks.app, name).delay("fail")
    with pytest.raises(ValueError, match="no"):
        result.get(timeout=WAIT)
    assert sorted(noted(tasks, result.id, "postrun")) == [
        "after_return FAILURE",
        "before_start",
        "failure ValueError",
        "on_failure ValueError('no') True",
        "postrun FAILURE",
        f"prerun {name}",
    ]


@pytest.mark.parametrize("name", ["hooked", "sync_hooked"])
def test_hooks_and_signals_of_a_retry(tasks: Running, name: str) -> None:
    result = getattr(tasks.app, name).delay("retry")
    assert result.get(timeout=WAIT) == "retry"
    assert sorted(noted(tasks, result.id, "postrun SUCCESS")) == [
        "after_return SUCCESS",
        "before_start",
        "before_start",
        "on_retry KeyError('again')",
        "on_success retry",
        "postrun RETRY",
        "postrun SUCCESS",
        f"prerun {name}",
        f"prerun {name}",
        "retry Retry",
        "success retry",
    ]


def test_a_link_error_is_called_once_with_the_exception(tasks: Running) -> None:
    result = tasks.app.fails.apply_async(("no",), link_error=tasks.app.errback.s())
    with pytest.raises(ValueError, match="no"):
        result.get(timeout=WAIT)
    wait_until(lambda: tasks.ledger.lines(f"errback {result.id}"), "the errback ran")
    assert tasks.ledger.lines(f"errback {result.id}") == [f"errback {result.id} ValueError"]


# -- other ends -----------------------------------------------------------------------------------------


def test_an_ignored_task_leaves_no_result(tasks: Running) -> None:
    result = tasks.app.ignores.delay()
    assert "postrun IGNORED" in noted(tasks, result.id, "postrun")
    assert result.state == "PENDING"


def test_a_rejected_task_comes_back_or_is_kept_as_a_dead_letter(tasks: Running) -> None:
    store = tasks.app.aq.store
    assert tasks.app.rejects.delay(requeue=True).get(timeout=WAIT) == "second time"
    before = store.command("XLEN", store.keys.dead())
    result = tasks.app.rejects.delay(requeue=False)
    noted(tasks, result.id, "postrun")
    wait_until(lambda: store.command("XLEN", store.keys.dead()) == before + 1, "a dead letter")
    [(_, letter)] = store.command("XREVRANGE", store.keys.dead(), "+", "-", "COUNT", 1)
    assert letter[b"i"] == result.id.encode()
    assert b"not mine" in letter[b"why"]


@pytest.mark.parametrize(
    ("name", "error"), [("limited", TimeLimitExceeded), ("softly_limited", SoftTimeLimitExceeded)]
)
def test_time_limits_end_a_coroutine(app: Any, name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        getattr(app, name).delay().get(timeout=WAIT)


@pytest.mark.parametrize("name", ["exits", "own_cancel"])
def test_a_task_that_ends_itself_fails_and_its_worker_stays(app: Any, name: str) -> None:
    with pytest.raises(StepAborted):
        getattr(app, name).delay().get(timeout=WAIT)
    assert app.add.delay(1, 1).get(timeout=WAIT) == 2


def test_an_expired_link_ends_its_chain_and_its_chord(tasks: Running) -> None:
    app = tasks.app
    late = app.add.s(1).set(expires=0.0001, countdown=0.3)
    result = chain(app.add.s(1, 1), late, app.add.s(1))()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=WAIT)
    fanned = chord([app.add.s(1, 1), app.add.si(2, 2).set(expires=0.0001, countdown=0.3)])(
        app.collects.s()
    )
    with pytest.raises(ChordError, match="expired"):
        alone(app, fanned).get(timeout=WAIT)


def test_a_terminated_coroutine_stops_and_ends_its_chain(tasks: Running) -> None:
    app = tasks.app
    result = chain(app.sleeps.s(61.5), app.add.s(1))()
    wait_until(lambda: tasks.ledger.lines("sleeps 61.5"), "it runs")
    app.app.control.revoke(result.parent.id, terminate=True)
    with pytest.raises(TaskRevokedError):
        result.parent.get(timeout=WAIT)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=WAIT)
    assert tasks.ledger.lines("slept 61.5") == []
    noted_lines = noted(tasks, result.parent.id, "revoked")
    assert "revoked True False" in noted_lines
    assert not any(line.startswith(("after_return", "success")) for line in noted_lines)


def test_a_revoked_task_never_starts_and_its_chord_ends(tasks: Running) -> None:
    app = tasks.app
    member = app.sleeps.si(62.5).set(countdown=0.5)
    result = chord([app.add.s(1, 1), member])(app.collects.s())
    [_, waiting] = result.parent.results
    app.app.control.revoke(waiting.id)
    with pytest.raises(ChordError, match="revoked"):
        alone(app, result).get(timeout=WAIT)
    assert tasks.ledger.lines("sleeps 62.5") == []


def test_a_task_that_kills_its_worker_is_given_up(url: str, ledger: Ledger) -> None:
    settings = {"WORKER__LEASE": "600ms", "WORKER__HANG_TIMEOUT": "500ms"}
    with running("tests.support.apps.coroutines", url, ledger, **settings) as killing:
        first = killing.worker("first")
        result = chain(killing.app.kills_its_worker.s(), killing.app.add.s(1, 1))()
        wait_until(lambda: not first.alive(), "it killed its worker")
        assert len(ledger.lines("kills")) == 1
        second = killing.worker("second")  # where it runs alone, three times
        with pytest.raises(Exception, match="its worker died 3 times while it ran") as caught:
            result.get(timeout=WAIT)
        assert type(caught.value).__name__ == "WorkerLost"
        assert len(ledger.lines("kills")) == 4
        assert second.alive()
