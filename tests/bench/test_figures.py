"""What agentq is measured by alone: a message wakes one, a delay costs no worker, a fleet spreads."""

from __future__ import annotations

import json

from agentq.host.preload import find_library
from agentq.ops.bench.coldstart import measure_coldstart
from agentq.ops.bench.delayed import measure_delayed
from agentq.ops.bench.figures import Figure, figures_as_json, render_figures
from agentq.ops.bench.herd import MOST_REPLIES, measure_herd
from agentq.ops.bench.isolation import VARIANTS, measure_isolation
from agentq.ops.bench.memory import measure_memory
from agentq.ops.bench.reconnect import measure_reconnect
from agentq.ops.bench.shares import measure_shares
from agentq.ops.bench.slots import measure_slots
from tests.support.redis_server import PROGRAM


def named(figures: list[Figure], part: str) -> list[Figure]:
    return [one for one in figures if part in one.name]


def test_a_message_wakes_one_of_many_idle_workers() -> None:
    found = measure_herd(readers=(2, 60), messages=100, rest_s=0.1, server=PROGRAM)
    assert [one.value <= MOST_REPLIES for one in named(found, ": woken")] == [True, True]
    assert all(one.value >= 1 for one in named(found, ": fetches"))
    assert all(one.value > 0 for one in named(found, "CPU a message"))


def test_delayed_tasks_wait_in_redis_and_all_that_are_due_come() -> None:
    found = measure_delayed(count=3000, due=1000, settle_s=0.2, server=PROGRAM)
    [_, memory] = named(found, "memory")
    assert memory.within, memory
    [late] = named(found, "behind its time")
    assert late.value < 5  # one second, on a machine that has a core to spare


def test_a_fleet_that_lost_its_broker_does_not_come_back_in_one_moment() -> None:
    found = measure_reconnect(workers=60, down_s=1.5, server=PROGRAM)
    [most] = named(found, "within 100 ms")
    assert most.value < 60
    [last] = named(found, "the last")
    assert last.value < 15


def test_memory_is_told_for_each_allocator_and_after_few_and_many_runs() -> None:
    found = measure_memory(steps=40, rounds=1, runs=(20, 40), settle_s=0.2, server=PROGRAM)
    names = ["glibc", "jemalloc"] if find_library("jemalloc") else ["glibc"]
    for name in names:
        before, peak, settled = named(found, f"{name}: ")
        assert 20 < before.value < peak.value
        assert settled.value <= peak.value + 1
    assert len(named(found, "jemalloc to glibc")) == len(names) - 1
    [after_few, after_many, growth] = found[-3:]
    assert growth.value == after_many.value / after_few.value
    assert (after_few.name, growth.limit) == ("after 20 runs", 1.05)


def test_a_first_step_is_told_beside_a_warm_one_with_warming_and_without() -> None:
    found = measure_coldstart(workers=1, steps=3, server=PROGRAM)
    warm, first, later = named(found, "with aq.warm")
    assert later.value == first.value - warm.value
    assert later.limit == 50
    [without] = named(found, "without: later by")
    assert without.value > 100, "its first step makes the table"


def test_pick_ups_of_critical_steps_are_told_idle_and_under_a_flood() -> None:
    found = measure_isolation(calls=20, flood=2000, rounds=1, variants=VARIANTS[:1], server=PROGRAM)
    _, _, _, idle, flooded, slower, rate = found
    assert slower.value == flooded.value / idle.value
    assert slower.limit == 2
    assert 0 < idle.value < 5000
    assert rate.value > 0


def test_the_ends_of_a_burst_are_told_on_average_and_at_last() -> None:
    bursts, modes = [("compute", 20)], ["adaptive"]
    mean, last = measure_slots(rounds=1, bursts=bursts, modes=modes, server=PROGRAM)
    assert 0.1 < mean.value <= last.value + 0.1


def test_a_figure_that_is_over_its_limit_is_marked() -> None:
    figures = [Figure("a", 3, "us", 2), Figure("b", 1, "s", 2), Figure("c", 9, "MB")]
    _, first, second, third = render_figures(figures).splitlines()
    assert first.split() == ["a", "3.00", "us", "2.00", "over"]
    assert second.split() == ["b", "1.00", "s", "2.00"]
    assert third.split() == ["c", "9.00", "MB"]
    assert [one["within"] for one in json.loads(figures_as_json(figures))] == [False, True, True]


def test_a_step_a_run_and_a_model_call_cost_what_the_plan_counts_with() -> None:
    found = measure_shares(runs=20, sleepers=200, sleep_s=1, server=PROGRAM)
    of = {one.name: one.value for one in found}
    [waiting], [done] = named(found, "a run that waits"), named(found, "steps done")
    assert 1_000 < waiting.value < done.value < 100_000
    [call] = named(found, "a model call")
    assert call.value > of["worker CPU a step of a run"] >= 0
    assert 20 < of["worker's memory before"] < 500
