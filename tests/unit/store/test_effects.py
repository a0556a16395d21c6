"""Effects and calls as the functions take them: flat, in the order of the Lua files' heads."""

from __future__ import annotations

from datetime import timedelta

from agentq.store import calls, effects
from agentq.store.calls import Accepted, Admission, Duplicate, Full, Load, NewRun
from agentq.store.effects import Message
from agentq.store.keys import Keys

BODY = Message("p", "low", 0, "body", "r", "", b"H", b"B")
MEMBER = Message("p", "normal", -5, "m", "r", "j|0", b"h", b"b")


def test_a_join_carries_its_bodies_before_its_members() -> None:
    effect = effects.join("j", width=1, at_once=2, ttl_ms=3, run="r", body=[BODY], members=[MEMBER])
    assert effect == ("join", "j", 1, 2, 3, "r", 1, 1, *BODY, *MEMBER)


def test_a_join_of_staged_members_names_them() -> None:
    effect = effects.join(
        "j", width=9, at_once=2, ttl_ms=3, run="r", body=[BODY], members="g", staged_bytes=70
    )
    assert effect == ("join", "j", 9, 2, 3, "r", 1, "staged:70:g", *BODY)


def test_an_enqueue_is_one_flat_call() -> None:
    run = NewRun("r", b"{}", -100, 60, 8, 9)
    call = calls.enqueue(
        "P",
        Admission("id", 10, "p", "low", 7, 70, "acme", 5),
        [effects.put(BODY), effects.forget("j")],
        run=run,
    )
    assert call == (
        "FCALL", "aq1_enqueue", 1, "P", "id", 10, "p", "low", 7, 70, "acme", 5, "r", b"{}", -100, 60, 8, 9,
        "put", *BODY, "forget", "j",
    )  # fmt: skip


def test_the_answers_of_enqueue() -> None:
    accepted = calls.enqueued([b"ok", 3, 50, 250, 8, 4000])
    assert isinstance(accepted, Accepted)
    assert (accepted.depth, accepted.deadline_ms, accepted.load) == (3, 50, Load(0.25, 8, 4.0))
    assert calls.enqueued([b"full", b"bytes", 9, 8, 1500]) == Full(
        "bytes", 9, 8, timedelta(seconds=1.5)
    )
    assert calls.enqueued([b"dup"]) == Duplicate()


def test_all_keys_of_a_cell_lie_in_one_slot() -> None:
    keys = Keys("two")
    made = [
        keys.stream("p", "l"), keys.returned("p", "l"), keys.wake("w"), keys.workers(),
        keys.worker("w"), keys.lanes(), keys.delayed(), keys.run("r"), keys.events("r"), keys.runs(),
        keys.join("j"), keys.outcomes("j"), keys.dead(), keys.reply("q"), keys.result("t"),
    ]  # fmt: skip
    assert len(set(made)) == len(made)
    assert all(key.startswith("{aq:two}:") for key in made)
