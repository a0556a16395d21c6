"""Values of each kind that users send, as our serializer and a step's annotation write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import ModuleType
from typing import Any
from uuid import UUID

from celery import signature

from agentq import Err, Ok
from agentq.broker import serializer
from agentq.broker.step import Step


class _Colour(Enum):
    RED = "red"


@dataclass
class _Point:
    x: int
    y: float


_PLAIN: dict[str, Any] = {
    "none": None,
    "true": True,
    "integers": [0, -1, 2**53, 2**63 - 1],
    "floats": [0.0, -0.0, 0.1, 1e300, 5e-324, 1.0],
    "text": ["", "Grüße, 世界", '"\\\b\n\u2028', "\U0001f600"],
    "bytes": b"bytes",
    "datetime": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "naive": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 -- users do that
    "date": date(2026, 1, 2),
    "time": time(3, 4, 5),
    "decimal": Decimal("12.50"),
    "uuid": UUID(int=7),
    "enum": _Colour.RED,
    "dataclass": _Point(1, 2.0),
    "tuple": (1, (2, 3)),
    "set": {7},
    "keys": {1: "one", None: "none", 2.5: "float"},
    "signature": signature("wire.add", args=(1, 2), kwargs={"z": 3}),
    "outcomes": [Ok(1), Err("ValueError", "text", "step", 2)],
}
_TYPED: dict[str, tuple[Any, Any]] = {
    "datetime": (datetime, _PLAIN["datetime"]),
    "timedelta": (timedelta, timedelta(days=1, seconds=1, microseconds=1)),
    "decimal": (Decimal, Decimal("12.50")),
    "bytes": (bytes, b"bytes"),
    "uuid": (UUID, UUID(int=7)),
    "enum": (_Colour, _Colour.RED),
    "dataclass": (_Point, _Point(1, 2.0)),
    "set": (set[int], {7}),
    "tuple": (tuple[int, str], (1, "one")),
    "union": (int | str | None, "text"),
    "floats": (list[float], [0.1, 1.0, 1e300]),
    "integer keys": (dict[int, str], {1: "one"}),
}


def written(app: ModuleType) -> dict[str, str]:
    """Return the name of each value -> its JSON."""
    plain = {f"plain {name}": serializer.dumps(value) for name, value in _PLAIN.items()}
    typed = {f"typed {name}": _step(kind).encode(value) for name, (kind, value) in _TYPED.items()}
    brief = app.Brief()
    models = {
        "model": serializer.dumps(brief),
        "model as argument": app.aq.steps["wire.typed"].encode_argument(brief),
        "model as result": app.aq.steps["wire.typed"].encode(brief),
    }
    return {name: data.decode() for name, data in (plain | typed | models).items()}


def _step(kind: Any) -> Step:
    def function() -> None: ...

    function.__annotations__ = {"return": kind}
    none: Any = None
    made: Callable[..., Step] = Step
    return made("typed", function, "async", "shared", "normal", none, 0, timedelta(0))
