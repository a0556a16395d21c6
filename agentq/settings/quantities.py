"""What a setting may be written as: durations, whole numbers, lists of words, paths, addresses."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from agentq.clock import format_duration, parse_duration

T = TypeVar("T")

# No "__" and no "-": it stands in AGENTQ_POOLS__<NAME>__SLOTS and in agentq-worker@<name>-3.
LABEL_RULE = "lower-case letters, digits and single underscores, at most 32"
_LABEL = re.compile(r"^(?=.{1,32}$)[a-z][a-z0-9]*(_[a-z0-9]+)*$")

_MILLISECOND = timedelta(milliseconds=1)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
_APP = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
_BLOB_STORE = re.compile(rf"directory|none|[a-z0-9]+://\S+|{_APP.pattern}")


def _duration(value: Any) -> timedelta:
    duration = parse_duration(value)
    if duration % _MILLISECOND:
        raise ValueError(f"{value!r} is finer than a millisecond")
    return duration


def _whole(value: object) -> object:
    # pydantic takes `slots = true` as 1
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a whole number")  # noqa: TRY004 - pydantic wants ValueError
    return value


def split_list(value: object) -> object:
    """Return `"a,b"` as a list, since variables have none; anything else as it is."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def distinct(value: tuple[T, ...]) -> tuple[T, ...]:
    """Return *value*; refuse an empty one and one that names something twice."""
    if not value:
        raise ValueError("name at least one")
    if len(set(value)) < len(value):
        raise ValueError("names something twice")
    return value


def is_label(name: str) -> bool:
    """Whether *name* can stand in a variable, a key and a unit's name."""
    return bool(_LABEL.fullmatch(name))


def _label(value: str) -> str:
    if not is_label(value):
        raise ValueError(f"write {LABEL_RULE}")
    return value


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value):
        raise ValueError("an address starts with a scheme, as in agentq://127.0.0.1:6379/0")
    return value


def _app(value: str) -> str:
    if not _APP.fullmatch(value):
        raise ValueError("write module:attribute, as in tasks.research:aq")
    return value


def _blob_store(value: str) -> str:
    if not _BLOB_STORE.fullmatch(value):
        raise ValueError("write directory, none, a URL as in s3://bucket, or module:Class")
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(format_duration)]
"""Written `"30s"`; a bare number is seconds; whole milliseconds."""

Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number; `true` is none."""

Cores = Annotated[tuple[Annotated[Whole, Field(ge=0)], ...], BeforeValidator(split_list)]
HomePath = Annotated[Path, AfterValidator(Path.expanduser)]
Label = Annotated[str, AfterValidator(_label)]
"""A pool's or cell's name."""

Address = Annotated[str, AfterValidator(_address)]
AppName = Annotated[str, AfterValidator(_app)]
BlobStoreName = Annotated[str, AfterValidator(_blob_store)]
