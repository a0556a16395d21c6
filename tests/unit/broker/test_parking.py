"""Work that a worker does not know waits ever longer, and others are asked first."""

from __future__ import annotations

import pytest

from agentq.broker import parking as module
from agentq.broker.parking import BEHIND, FIRST_MS, KEPT, LONGEST_MS, MOMENT_S, Parking


def test_each_refusal_of_a_message_doubles_its_wait_up_to_a_limit() -> None:
    parking = Parking()
    waits = [parking.after_ms(b"a") for _ in range(8)]
    assert waits == [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
    assert (waits[0], waits[-1]) == (FIRST_MS, LONGEST_MS)
    assert parking.after_ms(b"b") == FIRST_MS


def test_a_worker_that_refused_lets_others_go_first() -> None:
    parking = Parking()
    assert (parking.load(3), parking.moment) == (3, 0.0)
    parking.after_ms(b"a")
    assert (parking.load(3), parking.moment) == (3 + BEHIND, MOMENT_S)


def test_only_so_many_messages_are_remembered() -> None:
    parking = Parking()
    for number in range(KEPT + 1):
        parking.after_ms(b"%d" % number)
    assert parking.after_ms(b"0") == FIRST_MS
    assert parking.after_ms(b"%d" % KEPT) == 2 * FIRST_MS


def test_what_is_lacking_is_news_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    parking = Parking()
    assert [parking.is_news(name) for name in ("task a", "task a", "task b")] == [True, False, True]
    monkeypatch.setattr(module, "SAID_EVERY_S", 0.0)
    assert parking.is_news("task a")
