"""What is tried of which setting."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from agentq import AgentQ
from agentq.ops.tune.parameters import Parameter, kernel_parameters, parameters
from agentq.settings import Settings, load_settings


def found(settings: Settings, *allocators: str) -> dict[str, Parameter]:
    of_machine = parameters(settings, cores=2, slots=1000, allocators=["glibc", *allocators])
    return {one.key: one for one in of_machine}


SETTINGS = load_settings(environ={})
STOCK = load_settings(environ={}, overrides={"worker.stock_pool": "prefork"})
KERNEL = kernel_parameters(
    {"net.core.somaxconn": "4096", "net.ipv4.tcp_tw_reuse": "2", "net.core.rmem_max": "4194304"},
    lambda *_: nullcontext(),
)
FOUND = found(SETTINGS, "jemalloc") | {one.key: one for one in KERNEL}


def steps(parameter: Parameter, value: str, direction: str) -> list[str]:
    tried = []
    while (moved := parameter.neighbour(value, direction)) is not None:  # type: ignore[arg-type]
        tried.append(value := moved)
    return tried


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
        ("pools.shared.allocator", "jemalloc", "down", ["glibc"]),
        ("pools.shared.allocator", "glibc", "up", ["jemalloc"]),
        ("pools.shared.allocator", "tcmalloc", "down", []),
        ("net.core.somaxconn", "4096", "down", ["512", "128"]),
        ("net.core.somaxconn", "4096", "up", ["32768", "65535"]),
        ("net.ipv4.tcp_tw_reuse", "2", "down", ["1", "0"]),
        ("net.core.rmem_max", "4194304", "up", ["16777216"]),
    ],
)
def test_a_setting_is_moved_both_ways_and_to_an_end(
    key: str, value: str, direction: str, tried: list[str]
) -> None:
    assert steps(FOUND[key], value, direction) == tried


def test_under_celery_s_own_pools_prefetch_is_tried_and_processes_are_few() -> None:
    stock = found(STOCK)
    assert "batch.window" not in stock
    assert steps(stock["worker.prefetch"], "1", "up") == ["4", "16", "64"]
    assert steps(stock["pools.shared.slots"], "2", "up") == ["4", "8"]
    celery = AgentQ("tuned", overrides={"worker.prefetch": 16}).celery
    assert celery.conf.worker_prefetch_multiplier == 16
    assert "worker.prefetch" not in FOUND
    assert "pools.shared.slots" not in found(
        load_settings(environ={}, overrides={"worker.stock_pool": "solo"})
    )


def test_every_value_that_is_tried_is_one_the_settings_take() -> None:
    for one in (FOUND | found(STOCK)).values():
        now = one.read(SETTINGS)
        for value in (now, one.neighbour(now, "up"), one.neighbour(now, "down")):
            if value is not None and one.hold is None:
                assert one.read(load_settings(environ={one.variable: value})) == value
