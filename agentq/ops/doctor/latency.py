"""How fast the server answers: a short burst of PING, and what it remembers of slow calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from agentq.ops.doctor.cli import commands, setting
from agentq.ops.doctor.facts import Facts
from agentq.ops.doctor.finding import Finding, note, unchecked, warning
from agentq.ops.replies import text
from agentq.store.client import Store

PINGS = 200
P50_MS = 2.0
"""A step has two hand-overs: this much is added to each of its waits."""

P99_MS = 50.0
SLOW_MS = 100
_ASKED = 128
_AS_ADMIN = "agentq doctor as a user with +slowlog +latency"


def measure(store: Store) -> list[float]:
    """Return how long each of `PINGS` PINGs took, ms, one after the other."""
    took = []
    for _ in range(PINGS):
        began = time.perf_counter()
        store.command("PING")
        took.append((time.perf_counter() - began) * 1000)
    return took


def round_trip(took: Sequence[float]) -> Iterator[Finding]:
    """Judge a burst of round trips, ms."""
    p50, p99 = median(took), sorted(took)[int(0.99 * (len(took) - 1))]
    if p50 > P50_MS or p99 > P99_MS:
        yield warning(
            "broker.latency",
            f"PING takes {p50:.2f} ms (p50), {p99:.2f} ms (p99)",
            why="every hand-over of a step waits for it; 0.1-0.5 ms are usual in one network",
            remedy="redis-cli --latency with -h or -s of that server, then `mpstat -P ALL 1` on "
            "its machine: its core is shared, or the network is slow",
        )


def remembered(store: Store, facts: Facts) -> Iterator[Finding]:
    """Find slow calls in the server's SLOWLOG and events in its latency monitor."""
    slow, events = store.pipeline([("SLOWLOG", "GET", _ASKED), ("LATENCY", "LATEST")])
    for name, answer in (("broker.slowlog", slow), ("broker.latency", events)):
        if isinstance(answer, Exception):
            yield unchecked(name, answer, remedy=_AS_ADMIN)
    if not isinstance(slow, Exception):
        yield from _slow(slow)
    if not isinstance(events, Exception):
        yield from _events(facts, events)
    if facts.config.get("latency-monitor-threshold") == "0" and not facts.embedded:
        yield note(
            "broker.latency",
            "the latency monitor is off",
            why="the server keeps no record of what held it up: forks, fsyncs, expired keys",
            remedy=setting(facts, "latency-monitor-threshold", SLOW_MS),
        )


def _slow(entries: Any) -> Iterator[Finding]:
    found = [(int(entry[2]) / 1000, entry[3]) for entry in entries]
    slow = sorted((one for one in found if one[0] >= SLOW_MS), reverse=True, key=lambda one: one[0])
    if slow:
        took, words = slow[0]
        yield warning(
            "broker.slowlog",
            f"{len(slow)} of the last {len(found)} slow calls took {SLOW_MS} ms or more, the "
            f"slowest {took:.0f} ms: {' '.join(text(word)[:40] for word in words[:3])}",
            why="the server does one thing at a time: every worker and producer waited meanwhile; "
            "agentq's own functions hold it for 5 ms at most",
            remedy="keep KEYS, large LRANGE and scripts of others off this server; SLOWLOG GET "
            "shows who sent them, SLOWLOG RESET forgets them",
        )


def _events(facts: Facts, events: Any) -> Iterator[Finding]:
    for name, _, latest, worst, *_ in events:  # newer servers tell more
        if int(worst) >= SLOW_MS:
            yield warning(
                "broker.latency",
                f"event {text(name)} held the server up for {int(worst)} ms, last for "
                f"{int(latest)} ms",
                why="every worker and producer waited meanwhile",
                remedy=f"{commands(facts, 'LATENCY DOCTOR')} explains it; LATENCY RESET forgets it",
            )
