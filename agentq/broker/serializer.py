"""JSON as messages and results carry it: orjson, with pydantic models and Celery's objects.

Dates and decimals get the type tags of kombu's own `json` (`{"__type__": ...}`), so that ordinary
tasks receive what they were sent and either side may be stock Celery; a UUID arrives as a string,
since orjson writes it before it asks. Models become plain objects: the receiving step's annotation
makes them models again.
"""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
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
        return orjson.dumps(value, _default, _OPTIONS)
    except (TypeError, orjson.JSONEncodeError) as error:
        raise InvalidArgument(str(error.__cause__ or error)) from error


def loads(data: bytes | str | memoryview) -> Any:
    """Return what JSON *data* holds; kombu's type tags become what they stand for."""
    value = orjson.loads(data)
    tagged = b"__type__" in data if isinstance(data, bytes) else "__type__" in str(data)
    return _untag(value) if tagged else value


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(item) for item in value]
    if isinstance(value, dict):
        return object_hook({key: _untag(item) for key, item in value.items()})
    return value


def _kombu_dumps(value: Any) -> str:
    return dumps(value).decode()


KOMBU = (_kombu_dumps, loads, CONTENT_TYPE, "utf-8")
"""What kombu's entry point `kombu.serializers` takes."""


def install() -> None:
    """Make the serializer known to kombu under `NAME`, also in a checkout; safe twice."""
    register(NAME, *KOMBU)
