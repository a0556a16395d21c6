"""What is tried of which setting."""

from __future__ import annotations

import pytest

from agentq.ops.tune.parameters import Parameter, parameters
from agentq.settings import load_settings

FOUND = {one.key: one for one in parameters(cores=2)}


def steps(parameter: Parameter, value: str, direction: str) -> list[str]:
    found = []
    while (moved := parameter.neighbour(value, direction)) is not None:  # type: ignore[arg-type]
        found.append(value := moved)
    return found


@pytest.mark.parametrize(
    ("key", "value", "direction", "tried"),
    [
        ("pools.shared.slots", "1000", "down", ["125", "15", "4"]),
        ("pools.shared.slots", "1000", "up", ["8000", "16384"]),
        ("pools.shared.processes", "2", "down", ["1"]),
        ("pools.shared.processes", "2", "up", ["3", "4"]),
        ("batch.window", "15ms", "down", ["5ms", "2ms", "1ms"]),
        ("batch.window", "15ms", "up", ["45ms", "135ms", "405ms", "1s"]),
        ("batch.max_items", "16", "up", ["64", "256", "1024"]),
        ("pools.shared.allocator", "jemalloc", "down", []),
    ],
)
def test_a_setting_is_moved_both_ways_and_to_an_end(
    key: str, value: str, direction: str, tried: list[str]
) -> None:
    assert steps(FOUND[key], value, direction) == tried


def test_the_other_allocator_is_tried() -> None:
    assert FOUND["pools.shared.allocator"].neighbour("jemalloc", "up") == "glibc"


def test_every_value_that_is_tried_is_one_the_settings_take() -> None:
    settings = load_settings(environ={})
    for one in FOUND.values():
        now = one.read(settings)
        for value in (now, one.neighbour(now, "up"), one.neighbour(now, "down")):
            if value is not None:
                assert one.read(load_settings(environ={one.variable: value})) == value
