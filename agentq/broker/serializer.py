"""JSON as messages and results carry it: orjson, with pydantic models and Celery's objects.

Dates and decimals get the type tags of kombu's own `json` (`{"__type__": ...}`), so that ordinary
tasks receive what they were sent and either side may be stock Celery; a UUID arrives as a string,
since orjson writes it before it asks. Models become plain objects: the receiving step's annotation
makes them models again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from numbers import Real
from typing import Any

import orjson
from kombu.serialization import register
from kombu.utils.json import object_hook

from agentq.errors import InvalidArgument

NAME = "agentq"
CONTENT_TYPE = "application/json"
_OPTIONS = (
    orjson.OPT_NON_STR_KEYS
    | orjson.OPT_SERIALIZE_NUMPY
    | orjson.OPT_PASSTHROUGH_DATETIME
    # A group of a generator is a list subclass whose own storage is empty: orjson would see none.
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)

_NEVER_LOST = frozenset({str, int, bool, type(None)})


def _default(value: Any) -> Any:  # noqa: C901, PLR0911 -- one line for each type
    # By its method: kombu imports this module in processes that have no use for pydantic.
    if dump := getattr(value, "model_dump", None):
        return dump(mode="json")
    if isinstance(value, datetime):
        return {"__type__": "datetime", "__value__": value.isoformat()}
    if isinstance(value, date):
        return {"__type__": "date", "__value__": value.isoformat()}
    if isinstance(value, time):
        return {"__type__": "time", "__value__": value.isoformat()}
    if isinstance(value, Decimal):
        return {"__type__": "decimal", "__value__": str(value)}
    if isinstance(value, list | set | frozenset | tuple):
        return list(value)
    if isinstance(value, dict):  # Celery's Signature is a dict
        return dict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8")
    for method in ("__json__", "to_json"):
        if convert := getattr(value, method, None):
            return convert()
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"{type(value).__name__} can not be sent as JSON: {value!r:.100}")


def dumps(value: Any) -> bytes:
    """Return *value* as JSON.

    Raises:
        InvalidArgument: it holds something that JSON has no form for; the text names it.
    """
    try:
        data = orjson.dumps(value, _default, _OPTIONS)
    except (TypeError, orjson.JSONEncodeError) as error:
        raise InvalidArgument(str(error.__cause__ or error)) from error
    if b"null" in data:
        refuse_lost(value, data)
    return data


def refuse_lost(value: Any, data: bytes) -> None:
    """Do nothing where *data*, what JSON made of *value*, has each of its numbers.

    Raises:
        InvalidArgument: one is NaN or an infinity; the text says where.
    """
    if not _may_be_lost(value):
        return
    try:
        written = orjson.loads(data)
    except orjson.JSONDecodeError as error:  # a model with `ser_json_inf_nan="constants"`
        raise InvalidArgument(
            'it holds NaN or Infinity, no JSON: write them as "strings"'
        ) from error
    _check_finite(value, written, "value")


def _may_be_lost(value: Any) -> bool:
    """Whether a number became null, or there is something that only `_check_finite` opens.

    Most messages have a null that is none: this is what they pay, 3 us where the check takes 11.
    """
    kind = type(value)
    if kind in _NEVER_LOST:
        return False
    if kind is float:
        return not math.isfinite(value)
    if kind is dict:
        return any(map(_may_be_lost, value.values()))
    return any(map(_may_be_lost, value)) if kind in (list, tuple) else True


def _check_finite(value: Any, written: Any, at: str) -> None:
    if written is None and isinstance(value, Real) and not math.isfinite(value):
        raise InvalidArgument(
            f"{at} is {float(value)}, which JSON has no form for: send None or text instead"
        )
    if not isinstance(written, dict | list):
        return
    opened = _opened(value, written)
    parts = opened.items() if isinstance(opened, dict) else enumerate(opened)
    results = written.values() if isinstance(written, dict) else written
    for (name, part), result in zip(parts, results, strict=False):
        _check_finite(part, result, f"{at}[{name!r}]")


def _opened(value: Any, names: Iterable[str]) -> Any:
    """Return the list, or the dict of *names*, that *value* was written as."""
    while not isinstance(value, dict | list | tuple):
        if is_dataclass(value):  # this, an enum and an array orjson writes without asking
            return {name: getattr(value, name, None) for name in names}
        if isinstance(value, Enum):
            value = value.value
        else:
            value = value.tolist() if hasattr(value, "tolist") else _default(value)
    return value


def loads(data: bytes | str | memoryview) -> Any:
    """Return what JSON *data* holds; kombu's type tags become what they stand for.

    What only looks like a tag stays the object that it is: it is somebody's data.
    """
    value = orjson.loads(data)
    tagged = b"__type__" in data if isinstance(data, bytes) else "__type__" in str(data)
    return _untag(value) if tagged else value


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(item) for item in value]
    if isinstance(value, dict):
        plain = {key: _untag(item) for key, item in value.items()}
        try:
            return object_hook(plain)
        except Exception:  # noqa: BLE001 -- whatever a decoder says of what is not its own
            return plain
    return value


def _kombu_dumps(value: Any) -> str:
    return dumps(value).decode()


KOMBU = (_kombu_dumps, loads, CONTENT_TYPE, "utf-8")
"""What kombu's entry point `kombu.serializers` takes."""


def install() -> None:
    """Make the serializer known to kombu under `NAME`, also in a checkout; safe twice."""
    register(NAME, *KOMBU)
