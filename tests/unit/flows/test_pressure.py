"""How long a producer pauses, and how much it hands over at once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agentq.errors import QueueFull
from agentq.flows.pressure import LONGEST_PAUSE_S, Patience, Pressure, batch_size, pause_s
from agentq.store.calls import Accepted, Load


def middle() -> float:
    return 0.5


@pytest.mark.parametrize(
    ("fill", "rate", "count", "seconds"),
    [
        (0.49, 10.0, 500, 0.0),
        (0.5, 10.0, 5, 0.0),
        (0.75, 10.0, 5, 0.5),  # the pool's own rate
        (0.9, 10.0, 1, 0.4),  # a quarter of it
        (0.9, 10.0, 0, 0.0),
        (0.99, 1.0, 5, LONGEST_PAUSE_S),
        (1.0, 10.0, 1, LONGEST_PAUSE_S),
        (0.6, 0.0, 1, LONGEST_PAUSE_S),  # nobody works
        (0.75, None, 1, 0.5),  # not measured yet
    ],
)
def test_a_producer_pauses_by_fill_and_rate(
    fill: float, rate: float | None, count: int, seconds: float
) -> None:
    assert pause_s(Load(fill, 10, rate), count) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("depth", "fill", "size"),
    [(0, 0.0, 500), (4, 0.1, 18), (30, 0.75, 5), (39, 0.975, 1), (3, 0.99, 1)],
)
def test_a_batch_takes_half_of_the_room(depth: int, fill: float, size: int) -> None:
    limit = 100_000 if not fill else 40
    assert batch_size(Accepted(depth, 0, Load(fill, 0, None)), most=500, limit=limit) == size


@pytest.mark.parametrize(("limit", "size"), [(100_000, 500), (40, 10), (2, 1)])
def test_the_first_batch_takes_a_quarter(limit: int, size: int) -> None:
    assert batch_size(None, most=500, limit=limit) == size


def test_what_was_handed_over_is_paid_for_once() -> None:
    pressure = Pressure(jitter=middle)
    for _ in range(4):
        pressure.note(Accepted(30, 0, Load(0.75, 30, 10.0)))
    assert pressure.pause() == pytest.approx(0.4)
    assert pressure.pause() == 0
    pressure.refused()
    assert pressure.pause() == LONGEST_PAUSE_S
    pressure.refused()
    pressure.forget()
    assert pressure.pause() == 0


def test_patience_waits_as_long_as_it_is_told_and_no_longer() -> None:
    full = QueueFull("p", depth=1, limit=1, retry_after=timedelta(milliseconds=200))
    assert Patience("1h", jitter=middle).pause(full) == pytest.approx(0.2)
    assert 0.05 < Patience("100ms", jitter=middle).pause(full) <= 0.1
    with pytest.raises(QueueFull):
        Patience(None).pause(full)


HELD = {
    "length": "pool 'p' holds 9 of at most 8 messages",
    "bytes": "pool 'p' holds about 9 of at most 8 bytes of messages",
    "tenant": "the tenant has 9 of at most 8 unfinished runs",
    "memory": "the broker uses 9 of the 8 bytes (80 % of its maxmemory) up to which it accepts new "
    "work",
}


@pytest.mark.parametrize(
    ("reason", "setting"),
    [
        ("length", "broker.max_length"),
        ("bytes", "broker.max_bytes"),
        ("tenant", "broker.max_per_tenant"),
        ("memory", "the server's maxmemory"),
    ],
)
def test_a_refusal_names_what_is_full_and_what_to_raise(reason: str, setting: str) -> None:
    full = QueueFull("p", depth=9, limit=8, retry_after=timedelta(seconds=1.5), reason=reason)
    assert str(full) == f"{HELD[reason]}; try again in 1.5 s or raise {setting}"
