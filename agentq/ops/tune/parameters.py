"""What is tried of which setting: the next value in a direction, or none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from agentq.clock import format_duration, parse_duration
from agentq.settings import Settings

Direction = Literal["down", "up"]
DIRECTIONS: tuple[Direction, ...] = ("down", "up")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One setting that is moved."""

    key: str
    read: Callable[[Settings], str]
    """Returns what is set, as a variable would have it."""
    neighbour: Callable[[str, Direction], str | None]
    """Returns the next value, None where there is none."""

    @property
    def variable(self) -> str:
        """Return what sets it for a process."""
        return "AGENTQ_" + self.key.upper().replace(".", "__")


def parameters(*, cores: int) -> Sequence[Parameter]:
    """Return what is tuned on a machine of so many cores, in this order."""
    return (
        Parameter(key="pools.shared.slots", read=_slots, neighbour=_times(8, 4, 16_384)),
        Parameter(
            key="pools.shared.processes",
            read=lambda settings: str(settings.pools["shared"].processes),
            neighbour=_by_one(1, 2 * cores),
        ),
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
        Parameter(
            key="pools.shared.allocator",
            read=lambda settings: settings.pools["shared"].allocator,
            neighbour=_other("glibc", "jemalloc"),
        ),
    )


def _slots(settings: Settings) -> str:
    return str(settings.pools["shared"].slots or settings.worker.slots)


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


def _other(*values: str) -> Callable[[str, Direction], str | None]:
    """Two values without an order: the other one is "up"."""

    def neighbour(value: str, direction: Direction) -> str | None:
        return next(one for one in values if one != value) if direction == "up" else None

    return neighbour
