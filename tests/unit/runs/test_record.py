"""What a run's record and events say, read from their bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from agentq.runs.record import RunState, run_id_of, status_of


def test_the_same_key_gives_the_same_id_and_its_parts_do_not_run_together() -> None:
    assert run_id_of("flow", "key", None) == run_id_of("flow", "key", None)
    ids = {
        run_id_of("flow", "key", None),
        run_id_of("flow", "key", "t"),
        run_id_of("flow", "keyt", None),
        run_id_of("flowkey", "", None),
        run_id_of("other", "key", None),
    }
    assert len(ids) == 5
    assert all(len(one) == 32 for one in ids)


def test_a_running_run_has_no_end() -> None:
    status = status_of(
        "r", {b"state": b"running", b"at": b"1000", b"deadline": b"0", b"record": b"{}"}
    )
    assert (status.state, status.ended, status.deadline, status.took) == (
        RunState.RUNNING, None, None, None,
    )  # fmt: skip
    assert status.submitted == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_an_ended_run_says_how_long_it_took() -> None:
    fields = {
        b"state": b"done", b"at": b"1000", b"ended": b"3500", b"deadline": b"9000",
        b"record": b'{"flow":"f","key":"k","tenant":"t"}', b"result": b"[1]",
    }  # fmt: skip
    status = status_of("r", fields)
    assert status.took == timedelta(seconds=2.5)
    assert (status.flow, status.key, status.tenant, status.result) == ("f", "k", "t", b"[1]")
    assert status.state.ended


def test_every_state_but_running_is_an_end() -> None:
    assert [state for state in RunState if not state.ended] == [RunState.RUNNING]
