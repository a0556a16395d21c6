"""The producing process of a test: takes one `Order` as JSON, prints the rows as JSON.

A process of its own, so that its CPU time is the producer's alone and plain Celery's producer
carries nothing of agentq's broker.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import itemgetter

from agentq.ops.bench.callers import MEMBERS, PAYLOAD, PIPELINE_STEPS, Caller, Payload, caller
from agentq.ops.bench.gauge import Cost, Gauge
from agentq.ops.bench.ledger import Ledger, Mark
from agentq.ops.bench.rows import Row

_REPEATS = 3
_WARM_UP = 200
_COLD_CALLS = 30
_COLD_PIPELINES = 8  # enough for each of plain Celery's 64 processes to have connected
_READY_TIMEOUT_S = 40.0
_CPU_FROM_WIDTH = 1000  # narrower fan-ins last too few 10 ms ticks of CPU time to say anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do and whom to watch meanwhile.

    Attributes:
        job: a name in `_JOBS`.
        url: the server's address, to read its counts from.
        server: the server's process id.
        workers: process ids of the workers' roots.
        n: how many executions.
        bulk: how many in one call of a bulk enqueue.
        defined: the size that a makespan is extrapolated to.
        seconds: how long a sleeper sleeps.
        widths: the fan-ins to measure.
        variant: which of the caller's ways to use, for preloads.
        timeout_s: the most that one wait for executions may take.
    """

    system: str
    test: str
    job: str
    url: str
    server: int
    workers: tuple[int, ...] = ()
    n: int = 0
    bulk: int = 0
    defined: int = 0
    seconds: float = 1.0
    widths: tuple[int, ...] = ()
    variant: str = ""
    timeout_s: float = 60.0

    def gauge(self) -> Gauge:
        """Return the gauge of this order's server and workers."""
        return Gauge(url=self.url, server=self.server, workers=tuple(self.workers))

    def row(self, measure: str, unit: str, value: float, *, n: int) -> Row:
        """Return a row of this order."""
        return Row.figure(self.test, self.system, measure, unit, value, n)


def _preload(calls: Caller, order: Order) -> list[Row]:
    calls.bulks[order.variant](PAYLOAD, order.n)
    return []


def _preload_sleepers(calls: Caller, order: Order) -> list[Row]:
    calls.sleepers(order.n, order.seconds)
    return []


def _enqueue(calls: Caller, order: Order) -> list[Row]:
    rows: list[Row] = []
    for variant, single in calls.singles.items():
        for _ in range(min(_WARM_UP, order.n)):
            single(PAYLOAD)
        seen = _median_round(order, partial(_each, single, order.n))
        rows += [
            replace(row, variant=variant)
            for row in _enqueue_rows(order, "one by one", *seen, n=order.n)
        ]
    seen = _median_round(order, partial(calls.bulks[""], PAYLOAD, order.bulk))
    return rows + _enqueue_rows(order, "in bulk", *seen, n=order.bulk)


def _each(enqueue: Callable[[Payload], object], n: int) -> None:
    for _ in range(n):
        enqueue(PAYLOAD)


def _median_round(order: Order, work: Callable[[], object]) -> tuple[float, Cost]:
    """Return wall seconds and cost of *work*: the median round of three by wall time."""
    gauge = order.gauge()
    rounds: list[tuple[float, Cost]] = []
    for _ in range(_REPEATS):
        before, started = gauge.read(), time.perf_counter()
        work()
        wall = time.perf_counter() - started
        rounds.append((wall, gauge.read() - before))
    return sorted(rounds, key=itemgetter(0))[_REPEATS // 2]


def _enqueue_rows(order: Order, how: str, wall: float, cost: Cost, *, n: int) -> list[Row]:
    return [
        order.row(f"{how}: producer CPU", "us/step", cost.process_s / n * 1e6, n=n),
        order.row(f"{how}: Redis CPU", "us/step", cost.server_s / n * 1e6, n=n),
        order.row(how, "steps/s", n / wall, n=n),
    ]


def _latency(calls: Caller, order: Order) -> list[Row]:
    trips: list[float] = []
    pickups: list[float] = []
    for _ in range(_COLD_CALLS + order.n):
        sent = time.monotonic()
        picked_up = calls.call(PAYLOAD)
        trips.append((time.monotonic() - sent) * 1e3)
        pickups.append((picked_up - sent) * 1e3)
    return [
        order.row(f"{name} p{percent}", "ms", _percentile(values[_COLD_CALLS:], percent), n=order.n)
        for name, values in (("round trip", trips), ("pick-up", pickups))
        for percent in (50, 99)
    ]


def _fan_in(calls: Caller, order: Order) -> list[Row]:
    """Measure each width from the call to the start of the body, after a warm-up."""
    ledger, gauge = Ledger.from_environment(), order.gauge()
    _await_body(calls, ledger, order.widths[0], timeout_s=_READY_TIMEOUT_S)
    rows: list[Row] = []
    for width in order.widths:
        before = gauge.read()
        elapsed = _await_body(calls, ledger, width, timeout_s=order.timeout_s)
        cost = gauge.read() - before
        rows.append(order.row(f"fan-in of {width:,}", "s", elapsed, n=width))
        if width >= _CPU_FROM_WIDTH:
            rows += _cost_rows(order, f"fan-in of {width:,}: ", cost, steps=width)
    return rows


def _await_body(calls: Caller, ledger: Ledger, width: int, *, timeout_s: float) -> float:
    bodies, members = ledger.read(Mark.JOIN).count, ledger.read(Mark.STEP).count
    started = time.monotonic()
    calls.fan_in(width)
    tally = ledger.wait(Mark.JOIN, count=bodies + 1, timeout_s=timeout_s)
    ran = ledger.read(Mark.STEP).count - members
    if (tally.count - bodies, ran) != (1, width):
        raise TimeoutError(
            f"fan-in of {width:,}: {ran:,} members and {tally.count - bodies} bodies ran "
            f"within {timeout_s:.0f} s"
        )
    return tally.last - started


def _pipeline(calls: Caller, order: Order) -> list[Row]:
    """Measure one pipeline alone, then `n` at once, after a warm-up."""
    ledger, gauge = Ledger.from_environment(), order.gauge()
    _await_reviews(calls, ledger, _COLD_PIPELINES, timeout_s=_READY_TIMEOUT_S)
    alone = _await_reviews(calls, ledger, 1, timeout_s=order.timeout_s)
    before = gauge.read()
    makespan = _await_reviews(calls, ledger, order.n, timeout_s=order.timeout_s)
    cost = gauge.read() - before
    note = "" if order.n == order.defined else f"extrapolated from {order.n}"
    whole = makespan * order.defined / order.n
    return [
        order.row("one pipeline alone", "s", alone, n=1),
        replace(order.row(f"{order.defined} pipelines", "s", whole, n=order.n), note=note),
        *_cost_rows(order, "", cost, steps=order.n * PIPELINE_STEPS),
    ]


def _await_reviews(calls: Caller, ledger: Ledger, n: int, *, timeout_s: float) -> float:
    reviews = ledger.read(Mark.REVIEW).count
    started = time.monotonic()
    calls.pipelines(n)
    tally = ledger.wait(Mark.REVIEW, count=reviews + n, timeout_s=timeout_s)
    if tally.count != reviews + n:
        raise TimeoutError(
            f"{tally.count - reviews} of {n} pipelines of {MEMBERS} ended within {timeout_s:.0f} s"
        )
    return tally.last - started


def _cost_rows(order: Order, of: str, cost: Cost, *, steps: int) -> list[Row]:
    cpu_us = (cost.workers_s + cost.server_s) / steps * 1e6
    return [
        order.row(f"{of}worker + Redis CPU", "us/step", cpu_us, n=steps),
        order.row(f"{of}Redis commands", "1/step", cost.commands / steps, n=steps),
    ]


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


_JOBS: dict[str, Callable[[Caller, Order], list[Row]]] = {
    "preload": _preload,
    "preload-sleepers": _preload_sleepers,
    "enqueue": _enqueue,
    "latency": _latency,
    "fanin": _fan_in,
    "pipeline": _pipeline,
}


def main() -> None:
    """Do the order given as the first argument."""
    order = Order(**json.loads(sys.argv[1]))
    rows = _JOBS[order.job](caller(order.system), order)
    sys.stdout.write(json.dumps([asdict(row) for row in rows]) + "\n")


if __name__ == "__main__":
    main()
