"""What is tried of which setting: the next value in a direction, or none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from agentq.clock import format_duration, parse_duration
from agentq.settings import Settings

Direction = Literal["down", "up"]
DIRECTIONS: tuple[Direction, ...] = ("down", "up")


Hold = Callable[[str, str], AbstractContextManager[None]]
"""Lets a kernel setting, by name, have a value for as long as its block takes."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One setting that is moved."""

    key: str
    read: Callable[[Settings], str]
    """Returns what is set, as a variable would have it."""
    neighbour: Callable[[str, Direction], str | None]
    """Returns the next value, None where there is none."""
    hold: Hold | None = None
    """Of a kernel setting; None: it is one of ours, which processes are given."""

    @property
    def variable(self) -> str:
        """Return what sets it for a process."""
        return "AGENTQ_" + self.key.upper().replace(".", "__")

    @contextmanager
    def holding(self, value: str) -> Iterator[dict[str, str]]:
        """Let *value* hold; yields the variables that a trial's processes are given for it."""
        if self.hold is None:
            yield {self.variable: value}
            return
        with self.hold(self.key, value):
            yield {}


def parameters(
    settings: Settings, *, cores: int, slots: int, allocators: Sequence[str]
) -> Sequence[Parameter]:
    """Return what is tuned, in this order.

    Args:
        settings: only say whether the workers run Celery's own pool.
        cores: that may be used.
        slots: of a shared process where the settings name none.
        allocators: that this machine has.
    """
    stock = settings.worker.stock_pool is not None  # a process each, and nothing shares a batch
    moved = _times(2, 1, 4 * cores) if stock else _times(8, 4, 16_384)
    at_once = Parameter(
        key="pools.shared.slots",
        read=lambda settings: str(settings.pools["shared"].slots or slots),
        neighbour=moved,
    )
    return [
        *([at_once] if settings.worker.stock_pool != "solo" else []),
        Parameter(
            key="pools.shared.processes",
            read=lambda settings: str(max(1, settings.pools["shared"].processes)),
            neighbour=_by_one(1, 2 * cores),
        ),
        *([_PREFETCH] if stock else _BATCHES),
        Parameter(
            key="pools.shared.allocator",
            read=lambda settings: settings.pools["shared"].allocator,
            neighbour=_among(allocators),
        ),
    ]


def kernel_parameters(found: Mapping[str, str], hold: Hold) -> Sequence[Parameter]:
    """Return those of *found*, name -> what it is now, that are tried."""
    neighbours = {
        "net.core.somaxconn": _times(8, 128, 65_535),
        "net.ipv4.tcp_tw_reuse": _by_one(0, 2),
        "net.core.rmem_max": _times(4, 212_992, 2**24),
        "net.core.wmem_max": _times(4, 212_992, 2**24),
    }
    return [
        Parameter(key=name, read=lambda _, now=now: now, neighbour=neighbours[name], hold=hold)  # type: ignore[misc]
        for name, now in found.items()
    ]


def _times(factor: int, least: int, most: int) -> Callable[[str, Direction], str | None]:
    def neighbour(value: str, direction: Direction) -> str | None:
        number = int(value)
        moved = number // factor if direction == "down" else number * factor
        bounded = min(max(moved, least), most)
        return None if bounded == number else str(bounded)

    return neighbour


def _by_one(least: int, most: int) -> Callable[[str, Direction], str | None]:
    def neighbour(value: str, direction: Direction) -> str | None:
        moved = int(value) + (1 if direction == "up" else -1)
        return str(moved) if least <= moved <= most else None

    return neighbour


def _durations(
    factor: int, least: timedelta, most: timedelta
) -> Callable[[str, Direction], str | None]:
    def neighbour(value: str, direction: Direction) -> str | None:
        now = parse_duration(value)
        moved: Any = now / factor if direction == "down" else now * factor
        bounded = min(max(timedelta(milliseconds=round(moved / least)), least), most)
        return None if bounded == now else format_duration(bounded)

    return neighbour


def _among(values: Sequence[str]) -> Callable[[str, Direction], str | None]:
    """Values without an order are tried in this one; beside one that is not among them, none."""

    def neighbour(value: str, direction: Direction) -> str | None:
        if value not in values:
            return None
        moved = values.index(value) + (1 if direction == "up" else -1)
        return values[moved] if 0 <= moved < len(values) else None

    return neighbour


_BATCHES = (
    Parameter(
        key="batch.window",
        read=lambda settings: format_duration(settings.batch.window),
        neighbour=_durations(3, timedelta(milliseconds=1), timedelta(seconds=1)),
    ),
    Parameter(
        key="batch.max_items",
        read=lambda settings: str(settings.batch.max_items),
        neighbour=_times(4, 1, 1024),
    ),
)
_PREFETCH = Parameter(
    key="worker.prefetch",
    read=lambda settings: str(settings.worker.prefetch),
    neighbour=_times(4, 1, 64),
)
