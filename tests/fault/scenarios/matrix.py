"""The fault matrix: which scenarios there are, how often `make fault` tries each, and its short form.

Numbers up to 26 are the rows of the table that plain Celery was measured by; from 27 on there is
what that table lacks:

    27, 28, 30  store calls that fail by seed       29  half of a fleet dies under load
    31  a link cut before a reply is read           32  a server stopped for many leases
    33  a crash at each call of each function       34  the GIL held for longer than a lease
    35  a primary killed, Sentinel failover         36  the same, its replica lags
    37, 38  planned failover, writes paused or not  39  a killed primary comes back
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.fault.scenarios import (
    avalanche,
    chords,
    crash_points,
    drains,
    elsewhere,
    failover,
    full,
    kills,
    leases,
    links,
    messages,
    servers,
    store_faults,
    versions,
)
from tests.fault.scenarios.row import Row

Run = Callable[..., list[Row]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault as it is tried."""

    number: int
    """The row it belongs to."""
    name: str
    run: Run
    """Takes how many trials; returns the rows."""
    times: int
    """Trials of the long form."""
    short: Callable[[], list[Row]] | None
    """The form of `make test`; None: another scenario of the row, or a test, is that."""


def _scenario(
    number: int, run: Run, times: int, *, short: dict[str, Any] | None = None, **options: Any
) -> Scenario:
    """Return a scenario; *short*: what the short form has instead, None for no short form."""
    name = " ".join([run.__name__, *(str(value) for value in options.values())])
    once = None if short is None else partial(run, **{"trials": 1, **options, **short})
    return Scenario(number, name, partial(run, **options), times, once)


def _full(number: int, run: Callable[[], list[Row]]) -> Scenario:
    """Return a scenario that has one form, and a test of its own for the short one."""
    return Scenario(number, run.__name__, lambda _: run(), 1, None)


def _tested(number: int, fault: str, *which: str) -> Scenario:
    run = partial(elsewhere.tests, number=number, fault=fault, which=which)
    return Scenario(number, fault, run, 1, None)


MATRIX = (
    _scenario(1, kills.pool_child, 20, short={"tasks": 20}),
    _scenario(2, kills.worker_main, 10, kind="ours", short={}),
    _scenario(2, kills.worker_main, 10, kind="prefork", short={}),
    _scenario(3, kills.busy_workers, 300, kind="ours", short={"trials": 3}),
    _scenario(3, kills.busy_workers, 30, kind="prefork"),
    _scenario(4, servers.restarted, 20, kind="ours", short={"trials": 2}),
    _scenario(4, servers.restarted, 20, kind="prefork"),
    _scenario(4, servers.restarted, 10, kind="ours", appendfsync="everysec"),
    _scenario(5, servers.power_cut, 5, appendfsync="always", short={"seconds": 1.0}),
    _scenario(5, servers.power_cut, 5, appendfsync="everysec"),
    _scenario(6, links.killed, 12, kind="ours", short={"trials": 3}),
    _scenario(6, links.killed, 12, kind="prefork"),
    _scenario(7, servers.away, 3, how="paused", seconds=10.0, short={"seconds": 2, "timeout": 0.7}),
    _scenario(7, servers.away, 3, how="stopped", seconds=20.0),
    _tested(8, "Redis down, silent or stopped", "fault/test_producers.py::gives_up_within"),
    _scenario(9, chords.killed_half_way, 20, kind="ours", whom="worker", short={"width": 80}),
    _scenario(9, chords.killed_half_way, 20, kind="prefork", whom="child"),
    _scenario(9, chords.killed_half_way, 10, kind="prefork", whom="worker"),
    _scenario(10, chords.killed_at_the_count, 50, kind="prefork", whom="child", short={}),
    _scenario(10, chords.killed_at_the_count, 10, kind="prefork", whom="worker"),
    _scenario(10, chords.killed_at_the_count, 50, kind="ours", whom="worker"),
    _scenario(10, crash_points.run, 5),
    _scenario(11, chords.delivered_twice, 10, kind="ours", short={}),
    _scenario(11, chords.delivered_twice, 10, kind="prefork"),
    _scenario(12, leases.long_steps, 3, kind="ours", leases=20),
    _scenario(12, leases.long_steps, 3, kind="prefork", leases=20, short={"leases": 3}),
    _scenario(13, leases.frozen, 10, kind="ours"),
    _scenario(13, leases.frozen, 5, kind="prefork"),
    _tested(14, "clock of a worker or producer 2 h off", "fault/test_clock.py::two_hours_off"),
    _scenario(15, full.producer, 5, kind="ours", short={}),
    _scenario(15, full.producer, 5, kind="prefork"),
    _scenario(16, full.worker_at_work, 2, kind="ours", seconds=15.0),
    _scenario(16, full.worker_at_work, 2, kind="prefork", seconds=15.0),
    _scenario(17, full.fetch, 3, kind="ours", short={}),
    _scenario(17, full.fetch, 3, kind="prefork"),
    _scenario(18, messages.malformed, 3, kind="ours", short={}),
    _scenario(18, messages.malformed, 1, kind="prefork", short={}),
    _scenario(19, messages.too_large, 3, kind="ours", megabytes=100, short={"megabytes": 10}),
    _scenario(19, messages.too_large, 3, kind="prefork", megabytes=100),
    _tested(
        20, "a step that kills its worker",
        "fault/test_poison.py::test_of_a_poison_step",
        "integration/test_transport.py::given_up_after_three_deaths",
    ),
    _scenario(21, links.publish_reply_lost, 200, short={"trials": 60}),
    _scenario(22, links.black_hole, 3, kind="ours", seconds=20.0, short={"seconds": 1.0}),
    _scenario(22, links.black_hole, 2, kind="prefork", seconds=20.0),
    _scenario(23, drains.told_to_go, 5, kind="ours", seconds=2.0, short={"seconds": 1.0}),
    _scenario(23, drains.told_to_go, 3, kind="prefork", seconds=5.0),
    _scenario(23, drains.killed_while_draining, 3, kind="ours", after=10.0),
    _scenario(23, drains.killed_while_draining, 2, kind="prefork", after=10.0),
    _scenario(24, drains.cancelled, 5, kind="ours", short={}),
    _scenario(24, drains.cancelled, 3, kind="prefork"),
    _scenario(25, versions.unknown, 2, kind="ours", short={"tasks": 3}),
    _scenario(25, versions.unknown, 2, kind="prefork"),
    _scenario(26, servers.disk_error, 5, short={}),
    _full(27, store_faults.seeded),
    _full(29, avalanche.halved),
    _scenario(31, links.reply_lost, 20, function="fetch", kind="ours", short={}),
    _scenario(31, links.reply_lost, 20, function="fetch", kind="prefork", short={}),
    _scenario(31, links.reply_lost, 20, function="complete", kind="ours", short={}),
    _scenario(31, links.reply_lost, 20, function="complete", kind="prefork"),
    _scenario(32, servers.stopped_for_leases, 1, seconds=60.0, short={"seconds": 3.5}),
    _full(33, crash_points.run_functions),
    _scenario(34, leases.gil_held, 5, seconds=5.0),
    _scenario(35, failover.killed, 5, kind="ours", short={}),
    _scenario(35, failover.killed, 5, kind="prefork"),
    _scenario(36, failover.lost_without_replica, 2, kind="ours", short={"runs": 20}),
    _scenario(36, failover.lost_without_replica, 1, kind="prefork"),
    _scenario(37, failover.planned, 5, kind="ours", writes_paused=True),
    _scenario(37, failover.planned, 5, kind="prefork", writes_paused=True, short={}),
    _scenario(38, failover.planned, 2, kind="ours", writes_paused=False),
    _scenario(38, failover.planned, 2, kind="prefork", writes_paused=False),
    _scenario(39, failover.returned, 1, kind="ours"),
    _scenario(39, failover.returned, 1, kind="prefork"),
)  # fmt: skip
"""In the order of the table."""
