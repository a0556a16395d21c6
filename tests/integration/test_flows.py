"""What flows promise, with a real worker and a ledger of what its steps did."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentq import Err, Ok
from agentq.errors import DeadlineExceeded, InvalidArgument, RunFailed
from agentq.runs.handle import RunHandle
from tests.support.ledger import Ledger
from tests.support.running import BOTH_POOLS, Running, running
from tests.support.waiting import wait_until

STEP = "tests.support.apps.flows."


def run(flows: Running, name: str, argument: Any = None, **options: Any) -> RunHandle:
    return flows.app.aq.get_flow(name).submit(argument, **options)  # type: ignore[no-any-return]


def result(flows: Running, name: str, argument: Any = None, **options: Any) -> Any:
    return run(flows, name, argument, **options).result(timeout=20)


def failure(flows: Running, name: str, argument: Any = None) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        result(flows, name, argument)
    return caught.value


def expected(flows: Running, width: int, bad: set[int]) -> list[Ok[Any] | Err]:
    return [
        Err("ValueError", f"task {i} is bad", f"{STEP}execute", 1)
        if i in bad
        else Ok(flows.app.Found(double=2 * i))
        for i in range(width)
    ]


# -- fan-out and fan-in ---------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0, 1, 2, 1000, 5000])
def test_the_body_runs_once_with_every_outcome_in_order(flows: Running, width: int) -> None:
    bad = {1, 700}
    handle = run(flows, "research", flows.app.Brief(n=width, bad=sorted(bad)))
    assert handle.result(timeout=20) == expected(flows, width, bad)
    ledger = flows.ledger.counts()
    assert ledger[f"plan {handle.id}"] == 1
    assert ledger[f"review {handle.id} {width}"] == 1
    assert ledger[f"remember {handle.id}"] == 1
    executed = flows.ledger.lines(f"execute {handle.id} ")
    assert sorted(executed) == sorted(f"execute {handle.id} {i}" for i in range(width))


def test_an_empty_fan_out_goes_straight_to_the_body(flows: Running) -> None:
    handle = run(flows, "research", flows.app.Brief(n=0))
    assert handle.result(timeout=5) == []
    assert flows.ledger.lines(f"execute {handle.id}") == []
    assert flows.ledger.counts()[f"review {handle.id} 0"] == 1


def test_all_members_failing_still_reach_the_body(flows: Running) -> None:
    outcomes = result(flows, "research", flows.app.Brief(n=5, bad=list(range(5))))
    assert outcomes == expected(flows, 5, set(range(5)))


def test_a_narrow_fan_out_loses_no_member(flows: Running) -> None:
    outcomes = result(flows, "narrow", flows.app.Brief(n=50, bad=[49]))
    assert outcomes == expected(flows, 50, {49})


def test_members_may_be_sequences_and_an_early_failure_skips_their_rest(flows: Running) -> None:
    assert result(flows, "sequence", 5) == [10, 20, "ValueError", 40, 50]


def test_nested_fan_outs_join_inside_out(flows: Running) -> None:
    handle = run(flows, "grid", 5)
    assert handle.result(timeout=10) == ";10;20,ValueError;30,31,32;40,41,42,43"
    ledger = flows.ledger.counts()
    assert [ledger[f"row {handle.id} {width}"] for width in range(5)] == [1] * 5
    assert ledger[f"table {handle.id}"] == 1
    cells = [f"cell {handle.id} {row} {column}" for row in range(5) for column in range(row)]
    assert sorted(flows.ledger.lines(f"cell {handle.id}")) == cells


def test_nested_fan_outs_join_inside_out_under_prefork_too(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.flows", url, ledger) as stock:
        stock.worker(options=(*BOTH_POOLS, "-P", "prefork", "-c", "2"))
        assert result(stock, "grid", 5) == ";10;20,ValueError;30,31,32;40,41,42,43"
    assert set(ledger.counts("cell ").values()) == {1}


def test_a_step_is_tried_again_under_prefork_too(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.flows", url, ledger) as stock:
        stock.worker(options=(*BOTH_POOLS, "-P", "prefork", "-c", "2"))
        assert result(stock, "retried", 2) == 3
        assert failure(stock, "retried", 9).message == "attempt 4"
    assert [line.split()[2] for line in ledger.lines("flaky")] == [*"123", *"1234"]


def test_a_wide_nested_fan_out_runs_each_member_once(flows: Running) -> None:
    handle = run(flows, "grid", 41)
    assert len(handle.result(timeout=20).split(";")) == 41
    assert set(flows.ledger.counts(f"cell {handle.id} ").values()) == {1}
    assert len(flows.ledger.lines(f"cell {handle.id} ")) == 41 * 40 // 2


def test_a_fan_out_at_the_end_of_a_flow_gives_its_outcomes(flows: Running) -> None:
    assert result(flows, "open-end", flows.app.Brief(n=2, bad=[1])) == [
        Ok({"double": 0}),
        Err("ValueError", "task 1 is bad", f"{STEP}execute", 1),
    ]


def test_a_fan_out_at_the_end_of_a_fan_out_gives_outcomes_of_outcomes(flows: Running) -> None:
    first, second, third = result(flows, "nested-open", 3)
    assert (first, second) == (Ok([]), Ok([{"value": 10}]))
    assert [list(one) for one in third.value] == [
        ["value"],
        ["kind", "message", "step", "attempts"],
    ]


def test_a_body_without_annotation_gets_outcomes(flows: Running) -> None:
    assert result(flows, "untyped-body", 2) == "[Ok(value=1), Ok(value=2)]"


def test_a_list_that_looks_like_outcomes_is_left_alone(flows: Running) -> None:
    assert result(flows, "plain-list") == "[{'value': 1}]"


def test_a_fan_out_wider_than_the_limit_is_refused(flows: Running) -> None:
    error = failure(flows, "open-end", flows.app.Brief(n=10_001))
    assert error.kind == "RunTooLarge"
    assert "10001 members; runs.max_members is 10000" in error.message


# -- retries and time -------------------------------------------------------------------------------


def test_a_step_is_tried_again_after_a_growing_pause(flows: Running) -> None:
    handle = run(flows, "retried", 2)
    assert handle.result(timeout=10) == 3
    lines = [line.split()[2:] for line in flows.ledger.lines(f"flaky {handle.id}")]
    assert [attempt for attempt, _ in lines] == ["1", "2", "3"]
    pauses = [after - before for before, after in pairwise(float(at) for _, at in lines)]
    assert pauses[0] >= 0.05  # half of 100 ms
    assert pauses[1] >= 0.1  # half of 200 ms
    events = [event for event in handle.events() if event.kind == "retry"]
    assert [event.data["error"] for event in events] == ["ConnectionError"] * 2


def test_a_step_that_keeps_failing_is_tried_retries_times_more(flows: Running) -> None:
    handle = run(flows, "retried", 99)
    with pytest.raises(RunFailed, match="ConnectionError: attempt 4"):
        handle.result(timeout=10)
    assert len(flows.ledger.lines(f"flaky {handle.id}")) == 4


def test_one_attempt_ends_at_the_steps_timeout(flows: Running) -> None:
    assert result(flows, "timed", 0.01) == "done"
    handle = run(flows, "timed", 5)
    with pytest.raises(RunFailed, match=r"StepTimeout: step .*slow' did not end within .* 200ms"):
        handle.result(timeout=5)
    assert flows.ledger.lines(f"slow ended {handle.id}") == []


@pytest.mark.parametrize("name", ["sleeping", "cpu"])
def test_a_running_step_ends_at_the_runs_deadline(flows: Running, name: str) -> None:
    handle = run(flows, name, 20, deadline="400ms")
    with pytest.raises(DeadlineExceeded, match=handle.id):
        handle.result(timeout=5)
    status = handle.status()
    assert status.state == "expired"
    assert status.took is not None
    assert 0.4 <= status.took.total_seconds() < 1.5


def test_remaining_time_shrinks(flows: Running) -> None:
    first, second = result(flows, "remaining", deadline="5s")
    assert 4 < first <= 5
    assert 0.04 < first - second < 0.5
    assert result(flows, "unlimited") is True


# -- where steps run --------------------------------------------------------------------------------


def test_cpu_steps_run_in_another_process_and_others_in_the_workers(flows: Running) -> None:
    worker = result(flows, "pid")
    assert result(flows, "threaded", 0) == str(worker)
    assert result(flows, "cpu", 0) != worker


def test_a_cpu_step_that_kills_its_process_fails_alone(flows: Running) -> None:
    error = failure(flows, "dying-cpu")
    assert (error.kind, error.step) == ("WorkerLost", f"{STEP}dying_process")
    assert isinstance(result(flows, "cpu", 0), int)


@pytest.mark.parametrize("name", ["busy-cpu", "busy-threads"])
def test_waiting_for_a_free_process_or_thread_is_not_a_steps_own_time(
    url: str, ledger: Ledger, name: str
) -> None:
    settings = {"WORKER__THREADS": "2", "WORKER__CPU_PROCESSES": "2"}
    with running("tests.support.apps.flows", url, ledger, **settings) as flows:
        flows.worker()
        assert result(flows, name, 8) == [1] * 8  # 1.6 s in four rounds; the limit of each is 1 s


def test_a_cpu_step_beyond_its_timeout_is_ended_with_its_process(flows: Running) -> None:
    assert failure(flows, "limited-cpu", 1).kind == "StepTimeout"
    [line] = flows.ledger.lines("too long began")
    process = Path(f"/proc/{line.split()[-1]}")
    wait_until(lambda: not process.exists(), "its process has ended")
    assert isinstance(result(flows, "cpu", 0), int)


def test_a_thread_that_outlives_its_limit_fails_its_run(flows: Running) -> None:
    assert failure(flows, "threaded", 1).kind == "StepTimeout"


# -- what a newcomer does wrong -----------------------------------------------------------------------


def test_a_forbidden_result_names_the_step_the_field_and_the_value(flows: Running) -> None:
    error = failure(flows, "wrong")
    assert (error.kind, error.step) == ("InvalidResult", f"{STEP}wrong_type")
    assert error.message == (
        f"step '{STEP}wrong_type' returns Found: double: Input should be a valid integer, "
        "unable to parse string as an integer, returned 'many'"
    )


def test_a_result_that_does_not_fit_the_next_step_names_that_step(flows: Running) -> None:
    error = failure(flows, "mismatch")
    assert (error.kind, error.step) == ("InvalidArgument", f"{STEP}wants_text")
    assert error.message == (
        f"step '{STEP}wants_text' takes str: Input should be a valid string, was given 5"
    )


def test_a_forbidden_argument_is_refused_before_anything_is_sent(flows: Running) -> None:
    with pytest.raises(InvalidArgument, match=f"step '{STEP}plan' takes Brief: n: .*was given 'x'"):
        run(flows, "research", {"n": "x"})


def test_a_fan_out_over_something_else_than_a_list_says_so(flows: Running) -> None:
    error = failure(flows, "no-fan-out")
    assert error.kind == "InvalidResult"
    assert "its 'tasks' must be a list, got int" in error.message


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("other-deadline", "DeadlineExceeded", "of another run"),
        ("own-cancel", "StepAborted", "CancelledError: it awaited something that was cancelled"),
        ("exiting", "StepAborted", "SystemExit: enough"),
        ("exiting-thread", "StepAborted", "SystemExit: enough"),
    ],
)
def test_what_a_step_raises_fails_its_run_and_nothing_else(
    flows: Running, name: str, kind: str, message: str
) -> None:
    error = failure(flows, name)
    assert (error.kind, error.message) == (kind, message)
    assert result(flows, "pid") > 0


def test_under_prefork_a_fan_out_has_each_members_outcome_once(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.faults", url, ledger) as app:
        app.worker(options=(*BOTH_POOLS, "-P", "prefork", "-c", "2"))
        assert app.app.fan.submit(12).result(timeout=20) == list(range(12))
        assert len(ledger.lines("end ")) == 12


# -- afterwards -------------------------------------------------------------------------------------


def test_nothing_is_left_in_the_queues(flows: Running) -> None:
    store = flows.app.aq.store

    def queued() -> int:
        lanes = store.command("SMEMBERS", store.keys.lanes())
        kinds = (
            f"{store.keys.prefix}{kind}{lane.decode()}" for lane in lanes for kind in ("s:", "r:")
        )
        return sum(store.command("XLEN", key) for key in kinds)

    result(flows, "research", flows.app.Brief(n=600))
    wait_until(lambda: queued() == 0, "all deliveries have ended")
    assert store.command("HLEN", f"{store.keys.delayed()}:m") == 0
