"""JSON as messages carry it: what it refuses, and what comes through as it was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from agentq.broker import serializer
from agentq.broker.step import Step, _written
from agentq.errors import InvalidArgument


class Model(BaseModel):
    number: float | None = None
    others: list[float] = []


class Constants(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    number: float


class Strings(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    number: float
    nothing: None = None


@dataclass
class Data:
    number: float
    inner: Any = None


class Odd:
    """An object that writes itself as what has to be written in turn."""

    def __json__(self) -> Any:
        return (Model(number=math.nan),)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (math.nan, "value is nan"),
        ([1, -math.inf], r"value\[1\] is -inf"),
        ({"a": {"b": (None, math.inf)}}, r"value\['a'\]\['b'\]\[1\] is inf"),
        ({1: math.nan}, r"value\[1\] is nan"),
        ({math.nan}, r"value\[0\] is nan"),
        (Model(number=math.nan), r"value\['number'\] is nan"),
        ([Data(1.0, [Model(others=[math.nan])])], r"value\[0\]\['inner'\]\[0\]\['others'\]\[0\]"),
        (Odd(), r"value\[0\]\['number'\] is nan"),
    ],
)
def test_what_would_become_null_is_refused_by_its_place(value: Any, where: str) -> None:
    with pytest.raises(InvalidArgument, match=where):
        serializer.dumps(value)


@pytest.mark.parametrize(
    "value", [None, [None], {"a": None, "b": 1.5}, Model(), Data(1.0), {None}, "null"]
)
def test_a_null_that_was_none_is_written(value: Any) -> None:
    assert b"null" in serializer.dumps(value)


def test_a_models_own_choice_for_nan_stands_where_it_is_json() -> None:
    adapter = step_of(Strings).result_adapter
    assert _written(adapter, Strings(number=math.nan)) == b'{"number":"NaN","nothing":null}'
    with pytest.raises(InvalidArgument, match='write them as "strings"'):
        _written(step_of(Constants).result_adapter, Constants(number=math.nan))


@pytest.mark.parametrize(
    "value",
    [datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), time(3, 4), Decimal("1.50")],
)
def test_what_has_a_tag_comes_back_as_what_it_was(value: Any) -> None:
    assert serializer.loads(serializer.dumps([value])) == [value]


@pytest.mark.parametrize(
    "value",
    [
        {"__type__": "datetime", "__value__": "nonsense"},
        {"__type__": "unknown", "__value__": 1},
        {"__type__": ["decimal"], "__value__": 1},
        {"__type__": "decimal", "__value__": "many"},
        {"__type__": "uuid", "__value__": 7},
        {"__type__": "datetime"},
    ],
)
def test_what_only_looks_like_a_tag_stays_an_object(value: dict[str, Any]) -> None:
    assert serializer.loads(serializer.dumps({"of": [value]})) == {"of": [value]}


def step_of(result: type) -> Step:
    async def function() -> Any: ...

    function.__annotations__["return"] = result
    return Step(
        name="s", function=function, kind="async", pool="p", lane="l", timeout=None, retries=0,
        backoff=None,  # type: ignore[arg-type]
    )  # fmt: skip
