"""When a batch closes, and which of the waiting items go into it (pure).

A batch closes for the first of these reasons that holds while the backend is free:

    full        `max_items` wait
    siblings    every item waiting belongs to a fan-out, and all of that fan-out's calls are here
    idle        nothing more is to be expected: at the rate of late, the next item would come after
                the window has ended, or it is overdue
    window      the oldest has waited for `window`

While the backend is busy nothing closes: the next batch collects, which costs no one any time
(Triton's dynamic batcher works so). A fixed window alone mostly adds delay: on the arrivals of the
Azure conversation trace 87 % of calls would wait 10 ms for nobody.

Items of unlike length are kept apart because all of a batch are padded to its longest: measured on
MiniLM, one long text among eight short ones makes the batch 2.5 times slower than eight calls.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_OVERDUE = 2.0  # times the mean gap between arrivals
_LINGER = 0.1  # of the window at least: microseconds between calls of one loop tick tell nothing
_SMOOTHING = 0.2  # weight of the newest gap in the mean


class Close(StrEnum):
    """Why a batch was closed."""

    FULL = "full"
    SIBLINGS = "siblings"
    IDLE = "idle"
    WINDOW = "window"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How large a batch may get and how long it may take to fill.

    Attributes:
        max_items: at most so many in one call.
        window_ms: longest wait of an item while the backend is free; 0 passes items straight on.
        call_cost: what a call costs however short its items are, in units of the items' length.
            The default suits texts measured in characters, embedded over HTTP: 5 ms a call, and
            some 15 characters a millisecond.
    """

    max_items: int = 16
    window_ms: float = 15.0
    call_cost: float = 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits, and what is known about what will come.

    Attributes:
        count: items waiting, 1 at least.
        oldest_ms: how long the oldest has waited.
        newest_ms: how long ago the last one came.
        gap_ms: mean time between arrivals of late; None while unknown.
        missing: siblings of the waiting items still to come; None when nobody said.
        busy: whether the backend is working on as many batches as it may.
    """

    count: int
    oldest_ms: float
    newest_ms: float
    gap_ms: float | None
    missing: int | None
    busy: bool


def decide(waiting: Waiting, limits: BatchLimits) -> Close | float | None:
    """Return why to close now, or in how many ms to ask again, or None: once something changes."""
    if waiting.busy:
        return None
    left = limits.window_ms - waiting.oldest_ms
    if waiting.count >= limits.max_items:
        return Close.FULL
    if waiting.missing == 0:
        return Close.SIBLINGS
    if left <= 0:
        return Close.WINDOW
    if waiting.missing is None and waiting.gap_ms is not None:
        patience = max(_OVERDUE * waiting.gap_ms, _LINGER * limits.window_ms)
        overdue = patience - waiting.newest_ms
        expected = waiting.gap_ms <= limits.window_ms and overdue > 0
        return min(left, overdue) if expected else Close.IDLE
    return left


def mean_gap(gap_ms: float | None, newest_ms: float) -> float:
    """Return the mean gap between arrivals, the newest taken in; older ones fade."""
    return newest_ms if gap_ms is None else gap_ms + _SMOOTHING * (newest_ms - gap_ms)


def choose(lengths: Sequence[int], limits: BatchLimits) -> list[int]:
    """Return the indices of the items to send as one batch, in the order they came.

    The oldest (index 0) is always among them, so none starves. Beside it go those nearest to it in
    length, at most `max_items`, as far as sending them together costs no more than sending them in
    any other grouping: where a call costs ``call_cost + items * longest``, the cheapest split of
    the sorted lengths is found, and the part with the oldest goes. One by one is such a split, so
    padding never makes a batch slower than that.
    """
    near = heapq.nsmallest(
        limits.max_items, range(len(lengths)), key=lambda i: (abs(lengths[i] - lengths[0]), i)
    )
    near.sort(key=lambda i: lengths[i])
    ends = cheapest_split([lengths[i] for i in near], call_cost=limits.call_cost)
    begin = 0
    for end in ends:
        if 0 in near[begin:end]:
            return sorted(near[begin:end])
        begin = end
    raise AssertionError("unreachable: the parts cover all items")


def cheapest_split(lengths: Sequence[int], *, call_cost: float) -> list[int]:
    """Return where to cut ascending *lengths* so that all parts together cost the least.

    A part costs ``call_cost + items * longest``. The answer holds each part's end index, ascending;
    the last is ``len(lengths)``. Quadratic in the number of items.
    """
    best = [0.0]
    cut = [0]
    for end in range(1, len(lengths) + 1):
        longest = lengths[end - 1]
        cost, begin = min(
            (best[begin] + call_cost + (end - begin) * longest, begin) for begin in range(end)
        )
        best.append(cost)
        cut.append(begin)
    ends = []
    end = len(lengths)
    while end:
        ends.append(end)
        end = cut[end]
    return ends[::-1]
